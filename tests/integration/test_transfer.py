"""Learner ranks that send weights to engines in other processes."""

import contextlib
import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cluster.handles import Ref
from cluster.learning.direct_channel import DirectChannel, EngineClient, SendReport, gather
from cluster.types import Engine
from spag_ray.channels.base import ChannelBrokenError
from spag_ray.config.run import RunConfig
from spag_ray.errors import WeightSyncError
from tests.support.channels import config_with
from tests.support.settings import config_of

pytestmark = pytest.mark.usefixtures("local_ray")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find this file by its name


class Receiver:
    """An engine for a client: it keeps what it was told, and refuses, dies or hangs when it is to take an update."""

    def __init__(self, fate: str) -> None:
        self._fate = fate
        self._told: list[Any] = []

    def open_channel(self, init_info: dict[str, Any]) -> None:
        self._told.append(init_info.get("rank_offset"))

    def begin_update(self, in_flight: bool) -> None:
        self._told.append(in_flight)

    def take_update(self, update: dict[str, Any]) -> None:
        if self._fate == "refuses":
            raise WeightSyncError("these weights do not fit")
        if self._fate == "dies":
            ray.actor.exit_actor()
        if self._fate == "hangs":
            time.sleep(600)

    def end_update(self, version: int) -> None:
        self._told.append(version)

    def played_version(self) -> int:
        return 0

    def told(self) -> list[Any]:
        return self._told


def receivers(*fates: str) -> list[Engine]:
    actor = ray.remote(Receiver)
    return [Engine(actor.options(num_cpus=0).remote(fate), f"engine-{n}", "p") for n, fate in enumerate(fates)]


def told(engine: Engine) -> list[Any]:
    receiver: Any = engine.handle
    found: list[Any] = ray.get(receiver.told.remote())
    return found


def wait_until_dead(engine: Engine) -> None:
    deadline = time.monotonic() + 20
    with contextlib.suppress(ray.exceptions.RayActorError):
        while time.monotonic() < deadline:
            told(engine)
        raise AssertionError(f"{engine.name} still answers")


def test_every_engine_gets_ranks_of_its_own_and_one_that_dies_is_left_out() -> None:
    engines = receivers("", "dies", "")
    client = EngineClient(engines, config_of("engine.tensor_parallel_size=2; sync.update=in_flight"))
    client.version = 7
    assert client.world_size == 7
    client.init_weight_transfer_engine({"rank_offset": 1, "world_size": 7})
    client.start_weight_update()
    client.update_weights({})
    client.finish_weight_update()
    assert list(client.lost) == ["engine-1"]
    assert [told(engines[n]) for n in (0, 2)] == [[1, True, 7], [5, True, 7]]


@pytest.mark.parametrize("fates", [("", "dies"), ("", "hangs"), ("refuses", "refuses")])
def test_a_broadcast_is_given_up_once_an_engine_is_known_to_be_gone(fates: tuple[str, ...]) -> None:
    engines = receivers(*fates)
    [told(engine) for engine in engines]
    client = EngineClient(engines, config_of("sync.timeout_s=3"))
    aborted: list[float] = []

    def abort() -> bool:
        aborted.append(time.monotonic())
        return True

    client.abort = abort
    client.start_weight_update()
    assert aborted == []
    began = time.monotonic()
    with pytest.raises((WeightSyncError, ChannelBrokenError)):
        client.update_weights({})
    assert len(aborted) == 1, "bounded by sync.timeout_s"
    assert aborted[0] - began < 5, "bounded by sync.timeout_s"


def test_engines_that_refuse_are_stopped_and_named() -> None:
    engines = receivers("refuses", "dies")
    client = EngineClient(engines, RunConfig())
    client.start_weight_update()
    with pytest.raises(WeightSyncError, match=r"engine-0: .*do not fit.*these engines were stopped"):
        client.update_weights({})
    wait_until_dead(engines[0])


def test_one_engine_that_refuses_is_stopped_and_the_others_take_the_weights() -> None:
    engines = receivers("", "refuses")
    client = EngineClient(engines, RunConfig())
    client.start_weight_update()
    client.update_weights({})
    client.finish_weight_update()
    assert list(client.lost) == ["engine-1"]
    assert "do not fit" in client.lost["engine-1"]
    assert len(told(engines[0])) == 2
    wait_until_dead(engines[1])


def test_engines_that_hang_have_one_deadline_together() -> None:
    engines = receivers("hangs", "hangs", "hangs", "")
    [told(engine) for engine in engines]
    began = time.monotonic()
    answers = gather(engines, [engine.handle.take_update.remote({}) for engine in engines], 2.0)
    assert time.monotonic() - began < 4
    assert list(answers.found) == engines[3:]
    assert list(answers.lost) == engines[:3]
    assert "no answer within 2 s" in answers.lost[engines[0]]


class Restarted:
    """An engine whose first process dies when it is called: Ray says "unavailable", as of a network that failed."""

    def __init__(self, mark: str) -> None:
        self._mark = Path(mark)

    def played_version(self) -> int:
        if not self._mark.exists():
            self._mark.touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return 7


def test_an_engine_that_cannot_be_reached_is_called_again_if_the_call_may_be_made_twice(tmp_path: Path) -> None:
    def engine(name: str) -> Engine:
        actor = ray.remote(Restarted).options(num_cpus=0, max_restarts=1)
        return Engine(actor.remote(str(tmp_path / name)), name, "p")

    def played(each: Engine) -> Ref[int]:
        return each.handle.played_version.remote()

    once, twice = engine("once"), engine("twice")
    answers = gather([twice], [played(twice)], 60.0, again=played)
    assert answers.found == {twice: 7}
    answers = gather([once], [played(once)], 60.0)
    assert "unavailable" in answers.lost[once]
    assert answers.refused == [], "the fault is not the call's"


def test_a_channel_that_broke_is_opened_again_for_the_next_version() -> None:
    opened: list[list[str]] = []
    reports = iter([SendReport({}, 10), SendReport({"engine-1": "gone"}, 10, is_sent=False), SendReport({}, 10)])
    learners: Any = SimpleNamespace(
        open_channel=lambda channel, client: opened.append([engine.name for engine in client._engines]),
        send=lambda version: next(reports),
    )
    channel = DirectChannel(learners, config_with("nccl", 30))
    engines = receivers("", "")
    assert channel.send(1, engines)[2] is True
    _, answers, held = channel.send(2, engines)
    assert not held
    assert list(answers.found) == engines[:1]
    assert answers.lost == {engines[1]: "gone"}
    assert channel.send(3, engines[:1])[2] is True
    assert opened == [["engine-0", "engine-1"], ["engine-0"]]


def test_a_channel_is_opened_again_when_engines_have_come_or_gone() -> None:
    opened: list[list[str]] = []
    learners: Any = SimpleNamespace(
        open_channel=lambda channel, client: opened.append([engine.name for engine in client._engines]),
        send=lambda version: SendReport({}, 10),
    )
    channel = DirectChannel(learners, config_with("shared_memory", 30))
    first, second, third = receivers("", "", "")
    assert channel.send(1, [first, second])[0] == channel.send(2, [first, second])[0] == 10
    ray.kill(second.handle)
    wait_until_dead(second)
    num_bytes, answers, _ = channel.send(3, [first, second, third])
    assert num_bytes == 10
    assert list(answers.found) == [first, third]
    assert list(answers.lost) == [second]
    assert opened == [["engine-0", "engine-1"], ["engine-0", "engine-2"]]

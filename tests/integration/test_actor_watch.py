"""An actor that hangs is killed, and its callers continue; an actor that starts or is busy is left alone."""

import asyncio
import os
import random
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from actors.arena import Rules
from cluster.launch.placed_run import placed_run
from cluster.rollout.arenas import Arenas
from cluster.run.run import CONCURRENCY_GROUPS, SESSIONS
from cluster.runtime.ray_session import get
from cluster.runtime.run_folder import make_run_folder
from cluster.supervision import actor_watch as heartbeats
from cluster.supervision.actor_watch import ActorWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.recorder import Recorder
from spag_ray.config.parts import SupervisionConfig
from spag_ray.config.run import RunConfig
from spag_ray.game.protocol import TABOO
from spag_ray.games.taboo.game import TabooGame
from tests.support.faults import FaultyRun, hit
from tests.support.runs import records_of, stream_run
from tests.support.tiny_model import TARGETS
from tests.support.waiting import wait_until

pytestmark = pytest.mark.usefixtures("local_ray")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find this file by its name
TIMEOUT_S = 2.0


class Watched:
    """`start_s`: what its start takes, after a restart too."""

    def __init__(self, start_s: float) -> None:
        time.sleep(start_s)
        self._num_beats = 0

    async def heartbeat(self) -> None:
        self._num_beats += 1

    async def live(self) -> None:
        await asyncio.Event().wait()

    async def num_beats(self) -> int:
        return self._num_beats

    async def pid(self) -> int:
        return os.getpid()


@pytest.fixture
def watch() -> Iterator[ActorWatch]:
    watch = ActorWatch(TIMEOUT_S)
    watch.start()
    yield watch
    watch.stop()
    watch.check()


def started(start_s: float = 0.0, **options: Any) -> Any:
    return ray.remote(Watched).options(num_cpus=0, **options).remote(start_s)


def wait_until_up(handle: Any) -> None:
    """Another heartbeat is asked for only when one was answered."""
    wait_until(lambda: ray.get(handle.num_beats.remote()) >= 2, 30, "the watch asks for heartbeats")


def test_an_actor_that_hangs_is_killed_and_what_it_was_asked_fails(watch: ActorWatch) -> None:
    handle = started()
    watch.watch("arena-0", handle)
    wait_until_up(handle)
    os.kill(ray.get(handle.pid.remote()), signal.SIGSTOP)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(handle.pid.remote(), timeout=30)
    assert watch.reason("arena-0") == "arena-0 has not answered a heartbeat for 2 s"
    assert watch.reason("arena-0") is None, "said once"


def test_one_that_ray_restarts_answers_the_calls_that_waited(watch: ActorWatch) -> None:
    handle = started(max_restarts=5, max_task_retries=-1)
    watch.watch("buffer", handle, is_restarted=True)
    for _ in range(2):
        pid = ray.get(handle.pid.remote())
        wait_until_up(handle)
        os.kill(pid, signal.SIGSTOP)
        assert ray.get(handle.pid.remote(), timeout=30) != pid
        assert watch.reason("buffer") == "buffer has not answered a heartbeat for 2 s"


def test_a_slow_start_and_a_slow_restart_are_not_taken_for_a_hang(watch: ActorWatch) -> None:
    handle = started(2 * TIMEOUT_S, max_restarts=1, max_task_retries=-1)
    watch.watch("buffer", handle, is_restarted=True)
    pid = ray.get(handle.pid.remote(), timeout=30)
    wait_until_up(handle)
    os.kill(pid, signal.SIGKILL)
    assert ray.get(handle.pid.remote(), timeout=30) != pid
    wait_until_up(handle)
    assert watch.reason("buffer") is None


def test_one_that_hangs_while_it_starts_is_killed_too(watch: ActorWatch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeats, "START_WITHIN_S", 3.0)
    handle = started(600)
    watch.watch("arena-0", handle)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(handle.pid.remote(), timeout=30)
    assert watch.reason("arena-0") == "arena-0 has not answered a heartbeat for 3 s"


def test_one_that_could_not_be_reached_for_a_moment_is_still_watched() -> None:
    watch = ActorWatch(10.0)
    watch.start()
    handle = started(max_restarts=1)  # Ray says of its restart what it says of a network that failed
    watch.watch("arena-0", handle)
    wait_until_up(handle)
    os.kill(ray.get(handle.pid.remote()), signal.SIGKILL)
    deadline = time.monotonic() + 30
    while True:
        assert time.monotonic() < deadline
        try:
            wait_until_up(handle)
            break
        except ray.exceptions.ActorUnavailableError:
            time.sleep(0.1)
    os.kill(ray.get(handle.pid.remote()), signal.SIGSTOP)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(handle.pid.remote(), timeout=60)
    watch.stop()
    assert watch.reason("arena-0") == "arena-0 has not answered a heartbeat for 10 s"


def test_an_arena_that_two_plays_find_dead_is_replaced_once(watch: ActorWatch, tmp_path: Path) -> None:
    """An evaluation inside a stream is played by the stream's arenas."""
    metrics = Recorder(tmp_path)
    restarts = RestartBudget(SupervisionConfig(), metrics)
    nobody: Any = None
    arenas = Arenas(RunConfig(), tmp_path, watch, restarts, [Rules(TabooGame(max_turns=2), TABOO)], nobody)
    error = ray.exceptions.RayActorError()
    ray.kill(arenas.handles[0])
    try:
        handle = arenas.replace(0, "arena-0", error)
        assert arenas.replace(0, "arena-0", error) is handle
        assert arenas.name(0) == "arena-0.2"
        ray.get(handle.heartbeat.remote(), timeout=30)
        assert [line["what"] for line in records_of(tmp_path, "restart")] == ["arena-0"]
    finally:
        arenas.close()


@pytest.mark.timeout(250)
def test_a_run_answers_and_stops_while_sessions_wait_for_turns(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """The arena that should answer them hangs, and is not yet found to."""
    config = stream_run(
        tiny_model,
        words,
        400,
        engine={"kind": "transformers", "num_engines": 1},
        supervision={"heartbeat_timeout_s": 120},
    )
    folder = make_run_folder(tmp_path / "run", config)
    targets = list(TARGETS)
    with placed_run(config, folder, config.model, {"taboo": targets[2:]}, {"taboo": targets[:2]}, {}) as run:
        training = run.train.remote()
        while not (folder / "metrics.jsonl").exists() or not records_of(folder, "sync"):
            assert not ray.wait([training], timeout=0.1)[0], ray.get(training)
        assert hit("arena stuck", random.Random(0))
        turns = [run.play_turn.remote(targets[2], [], "defender") for _ in range(3 * CONCURRENCY_GROUPS[SESSIONS])]
        assert not ray.wait(turns, timeout=2)[0], "they all wait"
        assert get(run.status.remote(), 5.0).version >= 1
        get(run.stop_soon.remote(60.0), 5.0)
        get(run.status.remote(), 5.0)


@pytest.mark.long  # a run of a minute
@pytest.mark.timeout(250)
def test_a_stream_comes_to_its_end_when_buffer_and_arena_hang(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = stream_run(tiny_model, words, 30, engine={"kind": "transformers"})
    run = FaultyRun(config, tmp_path / "run", ["buffer stuck", "arena stuck"], gap_s=1, seed=0)
    run.to_the_end()
    print(run.table())
    run.check(30)
    causes = {line["what"].split("-")[0]: line["cause"] for line in records_of(tmp_path / "run", "restart")}
    assert causes == {"buffer": "stuck", "arena": "stuck"}

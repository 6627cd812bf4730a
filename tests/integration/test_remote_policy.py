"""Weights on their way to engines in other processes: bad ones, hanging ones, those that play another version."""

import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import ray

from actors.policy import Score
from actors.transformers_policy import TransformersPolicy
from cluster.learning.weight_sync import Probe, SyncReport, export, publish, verify_weights
from cluster.rollout.engine_actor import EngineActor, Pulse
from cluster.rollout.remote_policy import RemotePolicy
from cluster.types import Engine
from spag_ray.config.engine import EngineConfig
from spag_ray.errors import EngineError, LearnersLostError, WeightSyncError
from spag_ray.weights.snapshot import Snapshot
from tests.support.policies import PROMPT, ask, snapshot_of
from tests.support.runs import wait_until_dead
from tests.support.settings import config_of

pytestmark = pytest.mark.usefixtures("local_ray")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find this file by its name


class OneSnapshot:
    """A learner group that has these weights to give."""

    timeout_s = 60.0

    def __init__(self, snapshot: Snapshot, logprobs: Sequence[float]) -> None:
        self.num_tensors, self.adapter = snapshot.num_tensors, None
        self._parts = snapshot.parts
        self._logprobs = list(logprobs)

    def probe_ref(self, prompt_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> ray.ObjectRef:
        return ray.put(self._logprobs)

    def bucket_refs(self) -> list[ray.ObjectRef]:
        return [ray.put(part) for part in self._parts]

    def results(self, refs: list[ray.ObjectRef]) -> list[Any]:
        return ray.get(refs, timeout=self.timeout_s)


def started(model: Path, name: str, tmp_path: Path) -> Engine:
    handle = ray.remote(EngineActor).options(num_cpus=0, max_concurrency=64).remote(str(tmp_path / f"{name}.log"))
    config = EngineConfig(kind="transformers", dtype="float32", max_model_len=512)
    ray.get(handle.start.remote(str(model), config, name, 0, 0))
    return Engine(handle, name, name)


def test_published_weights_reach_every_engine_and_a_damaged_snapshot_ends_it(
    tiny_model: Path, other_tiny_model: Path, tmp_path: Path, loop: Any
) -> None:
    engines = [started(tiny_model, name, tmp_path) for name in ("one", "two")]
    good = snapshot_of(other_tiny_model, version=1)
    parts: Any = good.parts
    probe = Probe(PROMPT, (5, 6, 7))
    (scored,) = loop.run(TransformersPolicy(str(other_tiny_model), max_model_len=512).score([(PROMPT, (5, 6, 7))]))
    logprobs = scored.logprobs

    def publish_to_both(snapshot: Snapshot, version: int, says: Sequence[float]) -> SyncReport:
        learners: Any = OneSnapshot(snapshot, says)
        config, exported = SYNC, export(learners, version, probe)
        report, _ = publish(exported, engines, config)
        return verify_weights(exported, engines, config, probe, report)[0]

    report = publish_to_both(good, 1, logprobs)
    assert (report.version, report.num_engines) == (1, 2)
    assert report.num_bytes == sum(part.payload.nbytes for part in parts)
    assert 0 <= report.probe_gap_mean <= report.probe_gap_max < 1e-4
    (expected,) = loop.run(TransformersPolicy(str(other_tiny_model), max_model_len=512).generate([ask("x")]))
    for engine in engines:
        (answer,) = loop.run(RemotePolicy(engine.handle, engine.name).generate([ask("x")]))
        assert answer.token_ids == expected.token_ids
        assert answer.first_version == 1

    damaged = replace(good, parts=(replace(parts[0], checksum="0" * 16), *parts[1:]))
    with pytest.raises(WeightSyncError, match=r"one: .*bucket 0.*two: .*these engines were stopped"):
        publish_to_both(damaged, 3, logprobs)
    for engine in engines:
        with pytest.raises(EngineError, match="is gone"):
            loop.run(RemotePolicy(engine.handle, engine.name).generate([ask("y")]))


class Plays:
    """An engine that takes every version; `gap` is how far it then is from the learner."""

    def __init__(self, gap: float, refuses: bool = False) -> None:
        self._gap = gap
        self._refuses = refuses

    async def load(self, version: int, num_tensors: int, refs: list[ray.ObjectRef], *_: Any) -> tuple[int, int]:
        for ref in refs:
            await ref
        if self._refuses:
            raise WeightSyncError("a tensor does not fit")
        return version, 1

    async def score(self, sequences: Sequence[Any], temperature: float, adapter: str | None = None) -> list[Score]:
        return [Score((self._gap, self._gap), False) for _ in sequences]


def playing(*arguments: Any) -> list[Engine]:
    actor = ray.remote(Plays)
    return [
        Engine(actor.options(num_cpus=0).remote(*given), f"engine-{number}", "policy")
        for number, given in enumerate(arguments)
    ]


@ray.remote(num_cpus=0)
def never() -> None:
    time.sleep(600)


class SaysZero:
    """A learner group with one empty bucket, or one that is stuck before it."""

    num_tensors, adapter, timeout_s = 0, None, 2.0

    def __init__(self, stuck: bool = False) -> None:
        self.bucket = never.remote() if stuck else ray.put(None)

    def bucket_refs(self) -> list[ray.ObjectRef]:
        return [self.bucket]

    def probe_ref(self, *_: Any) -> ray.ObjectRef:
        return ray.put([0.0, 0.0])

    def results(self, refs: list[ray.ObjectRef]) -> list[Any]:
        return ray.get(refs, timeout=self.timeout_s)


SYNC = config_of("sync.max_probe_gap=0.1; sync.timeout_s=20; sync.update=in_flight")
PROBE = Probe((1,), (2, 3))


def test_one_engine_that_does_not_take_a_version_or_plays_another_is_replaced() -> None:
    engines = playing((0.0,), (0.0, True), (0.5,))
    exported = export(cast(Any, SaysZero()), 1, PROBE)
    report, lost = publish(exported, engines, SYNC)
    assert report.num_engines == 2
    assert list(lost) == [engines[1]]
    assert "does not fit" in lost[engines[1]]
    report, lost = verify_weights(exported, [engines[0], engines[2]], SYNC, PROBE, report)
    assert report.num_engines == 1
    assert report.probe_gap_max == 0.0
    assert list(lost) == [engines[2]]
    assert "engine-2 does not play version 1" in lost[engines[2]]
    for engine in engines[1:]:
        wait_until_dead(engine.handle.score, [], 1.0)
    gap = r"does not play version 1 as the learner .* by 0\.500 on average"
    with pytest.raises(WeightSyncError, match=rf"engine-0 {gap}.*engine-1 {gap}.*these engines were stopped"):
        verify_weights(exported, playing((0.5,), (0.5,)), SYNC, PROBE, report)
    ray.kill(engines[0].handle)


def test_a_learner_that_hangs_while_it_hands_out_weights_is_waited_for_once() -> None:
    """Engines that wait for its buckets are not to blame, and are not waited for one after the other."""
    engines = playing((0.0,), (0.0,))
    learners = SaysZero(stuck=True)
    exported = export(cast(Any, learners), 1, PROBE)
    began = time.monotonic()
    with pytest.raises(LearnersLostError, match=r"longer than learner.timeout_s \(2 s\)"):
        publish(exported, engines, SYNC)
    assert time.monotonic() - began < 6
    ray.cancel(learners.bucket, force=True)


class Starting:
    """An engine that loads its model and answers nothing else meanwhile."""

    async def hold_up(self, seconds: float) -> None:
        time.sleep(seconds)

    async def pulse(self) -> int:
        return os.getpid()


def test_an_engine_that_starts_has_a_pulse_until_its_process_stops() -> None:
    handle = ray.remote(concurrency_groups={Pulse.GROUP: 1})(Starting).options(num_cpus=0).remote()
    pid = ray.get(handle.pulse.options(concurrency_group=Pulse.GROUP).remote())
    pulse = Pulse(handle, 1.0)
    handle.hold_up.remote(600)
    deadline = time.monotonic() + 3
    while time.monotonic() < deadline:
        assert pulse.is_felt(), "its other calls are held up, its process runs"
        time.sleep(0.1)
    os.kill(pid, signal.SIGSTOP)
    deadline = time.monotonic() + 10
    while pulse.is_felt() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not pulse.is_felt()
    ray.kill(handle)

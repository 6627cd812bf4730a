"""Weights from the learner group to the engines, and the proof that they arrived.

    learner ranks --bucket i--> object store --> every engine: one session (start, update x N, finish) per version
                  --probe-----> log-probabilities of one fixed turn <--- compared ---> the same from every engine

An engine that cannot take a version is killed, not used: it would go on playing weights that nobody knows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import ray

from cluster.arena_actor import Engine
from cluster.learner_group import LearnerGroup
from spag_ray.config import SyncConfig
from spag_ray.errors import EngineError, WeightSyncError


@dataclass(frozen=True)
class Probe:
    """One fixed turn that learner and engines score after every sync: prompt [P] and target [L] token ids."""

    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]


@dataclass(frozen=True)
class Export:
    """A version on its way: its buckets in the object store (or about to be), and what the learner says of the probe
    under the same weights."""

    version: int
    bucket_refs: list[ray.ObjectRef]
    probe_ref: ray.ObjectRef | None
    num_tensors: int
    adapter: Mapping[str, Any] | None

    def wait(self) -> None:
        """Until the learner has nothing more to do with it."""
        refs = [*self.bucket_refs, *([self.probe_ref] if self.probe_ref is not None else [])]
        ray.wait(refs, num_returns=len(refs), fetch_local=False)


@dataclass(frozen=True)
class SyncReport:
    """One published version. `seconds`: from the call to every engine answering on it. `probe_gap_mean` and
    `probe_gap_max`: of the engine that is furthest from the learner, the mean and the largest difference of the probe's
    log-probabilities, in nats; 0 without a probe."""

    version: int
    seconds: float
    num_buckets: int
    num_engines: int
    num_bytes: int
    probe_gap_mean: float
    probe_gap_max: float
    probe_seconds: float


def export(learners: LearnerGroup, version: int, probe: Probe | None) -> Export:
    """Ask the learner for its weights as they are now; returns at once."""
    return Export(
        version,
        learners.bucket_refs(),
        learners.probe_ref(probe.prompt_ids, probe.target_ids) if probe is not None else None,
        learners.num_tensors,
        learners.adapter,
    )


class Gate(Protocol):
    """Who keeps games away from an engine that takes new weights between games."""

    def drain(self, engine: Engine) -> None:
        """Returns when no game sits there any more."""
        ...

    def reopen(self, engine: Engine) -> None: ...


def publish(
    exported: Export, engines: Sequence[Engine], config: SyncConfig, probe: Probe | None, gate: Gate | None = None
) -> tuple[SyncReport, list[Engine]]:
    """Give a version to every engine, then compare what they and the learner say of the probe. Returns the report and
    the engines that were found dead, which nobody counts on any more.

    Raises WeightSyncError, after killing the engines that failed, and says which and why; EngineError when all are
    dead.
    """
    began = time.perf_counter()
    lost: list[Engine] = []
    num_bytes = 0
    if config.update == "between_games" and gate is not None:
        for engine in engines:  # one at a time: the others go on playing
            gate.drain(engine)
            num_bytes = max(num_bytes, _load(exported, [engine], config, lost))
            gate.reopen(engine)
    else:
        num_bytes = _load(exported, engines, config, lost)
    seconds = time.perf_counter() - began
    gap_mean = gap_max = 0.0
    if probe is not None:
        alive = [engine for engine in engines if engine not in lost]
        gap_mean, gap_max = _probe(exported, alive, config, probe, lost)
    if len(lost) == len(engines):
        raise EngineError(f"version {exported.version}: no engine is left of {', '.join(e.name for e in engines)}")
    report = SyncReport(
        exported.version,
        seconds,
        len(exported.bucket_refs),
        len(engines) - len(lost),
        num_bytes,
        gap_mean,
        gap_max,
        time.perf_counter() - began - seconds,
    )
    return report, lost


def _load(exported: Export, engines: Sequence[Engine], config: SyncConfig, lost: list[Engine]) -> int:
    """All at once; returns the bytes that went to each, and adds to `lost` who is dead."""
    in_flight = config.update == "in_flight"
    loads = [
        engine.handle.load.remote(
            exported.version, exported.num_tensors, exported.bucket_refs, exported.adapter, in_flight
        )
        for engine in engines
    ]
    num_bytes = 0
    failed = []
    for engine, load in zip(engines, loads, strict=True):
        try:
            version, num_bytes = ray.get(load, timeout=config.timeout_s)
            assert version == exported.version, f"{engine.name} answered with version {version}"
        except ray.exceptions.RayActorError:
            lost.append(engine)
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
            cause = getattr(error, "cause", None) or error
            failed.append(f"{engine.name}: {str(cause).splitlines()[0]}")
            ray.kill(engine.handle)
    if failed:
        raise WeightSyncError(
            f"version {exported.version} was not taken by {'; '.join(failed)}; these engines were stopped"
        )
    return num_bytes


def _probe(
    exported: Export, engines: Sequence[Engine], config: SyncConfig, probe: Probe, lost: list[Engine]
) -> tuple[float, float]:
    """The largest (mean, maximum) gap of an engine; adds to `lost` who is dead."""
    expected: Sequence[float] = ray.get(exported.probe_ref, timeout=config.timeout_s)
    refs = [engine.handle.score.remote([(probe.prompt_ids, probe.target_ids)], 1.0) for engine in engines]
    worst = (0.0, 0.0)
    for engine, ref in zip(engines, refs, strict=True):
        try:
            (found,) = ray.get(ref, timeout=config.timeout_s)
        except ray.exceptions.RayActorError:
            lost.append(engine)
            continue
        gaps = [abs(ours - theirs) for ours, theirs in zip(expected, found, strict=True)]
        mean = sum(gaps) / len(gaps)
        if not mean <= config.max_probe_gap:
            raise WeightSyncError(
                f"{engine.name} does not play version {exported.version} as the learner has it: the log-probabilities "
                f"of the probe differ by {mean:.3f} on average (largest {max(gaps):.3f}), sync.max_probe_gap is "
                f"{config.max_probe_gap:g}"
            )
        worst = max(worst, (mean, max(gaps)))
    return worst

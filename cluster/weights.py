"""Weights from the learner group to the engines, and the proof that they arrived.

    learner ranks --bucket i--> object store --> every engine: one session (start, update x N, finish) per version
                  --weights------------------>   or straight to every engine, on the channels of transfer.py
                  --probe-----> log-probabilities of one fixed turn <--- compared ---> the same from every engine

An engine that cannot take a version is killed, not used: it would go on playing weights that nobody knows.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import ray

from cluster.arena_actor import Engine
from cluster.learner_group import LearnerGroup
from cluster.transfer import DirectChannel, gather
from spag_ray.config import SyncConfig
from spag_ray.errors import LearnersLostError, WeightSyncError


@dataclass(frozen=True)
class Probe:
    """One fixed turn that learner and engines score after every sync: prompt [P] and target [L] token ids."""

    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]


@dataclass(frozen=True)
class Export:
    """A version on its way: its buckets in the object store (or about to be), or the channel on which the learner will
    send it itself, and what the learner says of the probe under the same weights."""

    version: int
    bucket_refs: list[ray.ObjectRef]
    probe_ref: ray.ObjectRef | None
    num_tensors: int
    adapter: Mapping[str, Any] | None
    direct: DirectChannel | None = None

    def wait(self) -> None:
        """Until the learner has nothing more to do with it."""
        refs = [*self.bucket_refs, *([self.probe_ref] if self.probe_ref is not None else [])]
        ray.wait(refs, num_returns=len(refs), fetch_local=False)


@dataclass(frozen=True)
class SyncReport:
    """One published version. `seconds`: from the call to every engine being on it; `num_bytes`: to each of them.
    `probe_gap_mean` and `probe_gap_max`: of the engine that is furthest from the learner, the mean and the largest
    difference of the probe's log-probabilities, in nats; 0 without a probe."""

    version: int
    seconds: float
    num_engines: int
    num_bytes: int
    probe_gap_mean: float = 0.0
    probe_gap_max: float = 0.0
    probe_seconds: float = 0.0


def export(learners: LearnerGroup, version: int, probe: Probe | None, direct: DirectChannel | None = None) -> Export:
    """Ask the learner for its weights as they are now; returns at once. On a direct channel they leave it when they are
    published: the learner must not step before."""
    return Export(
        version,
        learners.bucket_refs() if direct is None else [],
        learners.probe_ref(probe.prompt_ids, probe.target_ids) if probe is not None else None,
        learners.num_tensors,
        learners.adapter,
        direct,
    )


class Gate(Protocol):
    """Who keeps games away from an engine that takes new weights between games."""

    def drain(self, engine: Engine) -> None:
        """Returns when no game sits there any more."""
        ...

    def reopen(self, engine: Engine) -> None: ...


def publish(
    exported: Export, engines: Sequence[Engine], config: SyncConfig, gate: Gate | None = None
) -> tuple[SyncReport, list[Engine]]:
    """Give a version to every engine. Returns the report and the engines that were found dead, which nobody counts on
    any more.

    Raises WeightSyncError, after killing the engines that failed, and says which and why.
    """
    began = time.perf_counter()
    lost: list[Engine] = []
    num_bytes = 0
    if config.update == "between_games" and gate is not None:
        # One at a time, so that the others go on playing; those that take the weights together stop together.
        groups = [list(engines)] if exported.direct is not None else [[engine] for engine in engines]
        for group in groups:
            for engine in group:
                gate.drain(engine)
            num_bytes = max(num_bytes, _load(exported, group, config, lost))
            for engine in group:
                gate.reopen(engine)
    else:
        num_bytes = _load(exported, engines, config, lost)
    return SyncReport(exported.version, time.perf_counter() - began, len(engines) - len(lost), num_bytes), lost


def prove(
    exported: Export, engines: Sequence[Engine], config: SyncConfig, probe: Probe, report: SyncReport
) -> tuple[SyncReport, list[Engine]]:
    """Compare what the engines and the learner say of the probe: the report with what was found, and the engines that
    were found dead.

    Raises WeightSyncError that names the engine whose gap is above `sync.max_probe_gap`.
    """
    began = time.perf_counter()
    lost: list[Engine] = []
    gap_mean, gap_max = _probe(exported, engines, config, probe, lost)
    seconds = time.perf_counter() - began
    num_engines = report.num_engines - len(lost)
    found = replace(
        report, num_engines=num_engines, probe_gap_mean=gap_mean, probe_gap_max=gap_max, probe_seconds=seconds
    )
    return found, lost


def _load(exported: Export, engines: Sequence[Engine], config: SyncConfig, lost: list[Engine]) -> int:
    """All at once; returns the bytes that went to each, and adds to `lost` who is dead."""
    if exported.direct is not None:
        num_bytes, dead = exported.direct.send(exported.version, engines)
        lost.extend(dead)
        return num_bytes
    in_flight = config.update == "in_flight"
    loads = [
        engine.handle.load.remote(
            exported.version, exported.num_tensors, exported.bucket_refs, exported.adapter, in_flight
        )
        for engine in engines
    ]
    answers = gather(engines, loads, config.timeout_s, f"version {exported.version} was not taken")
    lost.extend(answers.lost)
    for engine, (version, _) in answers.found.items():
        assert version == exported.version, f"{engine.name} answered with version {version}"
    return max((num_bytes for _, num_bytes in answers.found.values()), default=0)


def _probe(
    exported: Export, engines: Sequence[Engine], config: SyncConfig, probe: Probe, lost: list[Engine]
) -> tuple[float, float]:
    """The largest (mean, maximum) gap of an engine; adds to `lost` who is dead."""
    try:
        expected: Sequence[float] = ray.get(exported.probe_ref, timeout=config.timeout_s)
    except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError) as error:
        raise LearnersLostError(f"the learner has not scored the probe: {str(error).splitlines()[0]}") from error
    refs = [engine.handle.score.remote([(probe.prompt_ids, probe.target_ids)], 1.0) for engine in engines]
    answers = gather(engines, refs, config.timeout_s, "the probe was not scored")
    lost.extend(answers.lost)
    worst = (0.0, 0.0)
    for engine, (found,) in answers.found.items():
        gaps = [abs(ours - theirs) for ours, theirs in zip(expected, found.logprobs, strict=True)]
        mean = sum(gaps) / len(gaps)
        if not mean <= config.max_probe_gap:
            raise WeightSyncError(
                f"{engine.name} does not play version {exported.version} as the learner has it: the log-probabilities "
                f"of the probe differ by {mean:.3f} on average (largest {max(gaps):.3f}), sync.max_probe_gap is "
                f"{config.max_probe_gap:g}"
            )
        worst = max(worst, (mean, max(gaps)))
    return worst

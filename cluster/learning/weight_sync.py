"""Sends weights from the learner group to the engines, and checks that they arrived.

    learner ranks --bucket i--> object store --> every engine: one session (start, update x N, finish) per version
                  --weights------------------>   or straight to every engine, on the channels of direct_channel.py
                  --probe-----> log-probabilities of one fixed turn <--- compared ---> the same from every engine

An engine that cannot load a version, or then plays another one, is killed and replaced, because it would play unknown
weights. When no engine can load it, the version is at fault, and the run ends.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import ray

from actors.policy import Score
from cluster.handles import Ref
from cluster.learning.direct_channel import Answers, DirectChannel, gather
from cluster.learning.learner_group import LearnerGroup
from cluster.types import Engine
from spag_ray.config.run import RunConfig
from spag_ray.errors import LearnersLostError
from spag_ray.results.lines import SyncReport
from spag_ray.weights.snapshot import Bucket


@dataclass(frozen=True)
class Probe:
    """One fixed turn that learner and engines score after every sync: prompt [P] and target [L] token ids."""

    prompt_ids: tuple[int, ...]
    target_ids: tuple[int, ...]


@dataclass
class Export:
    """A version in transfer: its buckets in the object store (or about to be), or the channel on which the learner will
    send it itself, and the learner's scores of the probe under the same weights. `report`: once it was published;
    `is_proved`: it is on the engines and was compared with the learner."""

    learners: LearnerGroup
    version: int
    bucket_refs: list[Ref[Bucket]]
    probe_ref: Ref[list[float]] | None
    direct: DirectChannel | None = None
    report: SyncReport | None = None
    is_proved: bool = False

    def wait(self) -> None:
        """Wait until the learner has done its part. Raises LearnersLostError when that takes too long."""
        refs = [*self.bucket_refs, *([self.probe_ref] if self.probe_ref is not None else [])]
        timeout_s = self.learners.timeout_s
        if refs and ray.wait(refs, num_returns=len(refs), timeout=timeout_s, fetch_local=False)[1]:
            raise LearnersLostError(
                f"a learner call took longer than learner.timeout_s ({timeout_s:g} s)"
            ) from ray.exceptions.GetTimeoutError()


def export(learners: LearnerGroup, version: int, probe: Probe | None, direct: DirectChannel | None = None) -> Export:
    """Request the learner's current weights; returns at once. On a direct channel they are sent by `publish`: the
    learner must not step before."""
    bucket_refs = learners.bucket_refs() if direct is None else []
    probe_ref = learners.probe_ref(probe.prompt_ids, probe.target_ids) if probe is not None else None
    return Export(learners, version, bucket_refs, probe_ref, direct)


class Gate(Protocol):
    """Keeps games away from an engine that loads new weights between games."""

    def drain(self, engine: Engine) -> None:
        """Returns when the engine has no game left."""
        ...

    def reopen(self, engine: Engine) -> None: ...


def publish(
    exported: Export, engines: Sequence[Engine], config: RunConfig, gate: Gate | None = None
) -> tuple[SyncReport, dict[Engine, str]]:
    """Give a version to every engine. Returns the report and {engine: why} of those that were stopped. If the report
    has `broken_channels`, the others' weights may be incomplete.

    Raises WeightSyncError, with each engine's reason, when engines refused it and none took it.
    """
    began = time.perf_counter()
    answers: Answers[object] = Answers()
    num_bytes, held = 0, True
    closed = gate if config.sync.update == "between_games" else None
    # One at a time, so that the others continue to play; on a direct channel all stop together.
    is_one_by_one = closed is not None and exported.direct is None
    for group in [[engine] for engine in engines] if is_one_by_one else [engines]:
        if closed is not None:
            for engine in group:
                closed.drain(engine)
        to_each, held = _load(exported, group, config, answers)
        num_bytes = max(num_bytes, to_each)
        # Engines of a broken channel are still paused: games that they got now would wait for the weights that come
        # another way, which wait for these games.
        if closed is not None and held:
            for engine in group:
                closed.reopen(engine)
    answers.check(f"version {exported.version} was not taken by ")
    seconds = time.perf_counter() - began
    report = SyncReport(exported.version, seconds, len(answers.found), num_bytes, broken_channels=0 if held else 1)
    return report, answers.lost


def verify_weights(
    exported: Export, engines: Sequence[Engine], config: RunConfig, probe: Probe, report: SyncReport
) -> tuple[SyncReport, dict[Engine, str]]:
    """Compare the engines' scores of the probe with the learner's. Returns the report with the result, and
    {engine: why} of those that were stopped: dead, or with a gap above `sync.max_probe_gap`.

    Raises WeightSyncError, with each engine's reason, when every engine that answered has such a gap.
    """
    began = time.perf_counter()
    assert exported.probe_ref is not None
    (expected,) = exported.learners.results([exported.probe_ref])

    def score(engine: Engine) -> Ref[list[Score]]:
        return engine.handle.score.remote([(probe.prompt_ids, probe.target_ids)], 1.0)

    answers = gather(engines, list(map(score, engines)), config.sync.timeout_s, again=score)
    worst = (0.0, 0.0)
    for engine, (found,) in list(answers.found.items()):
        gaps = [abs(ours - theirs) for ours, theirs in zip(expected, found.logprobs, strict=True)]
        mean = sum(gaps) / len(gaps)
        if mean <= config.sync.max_probe_gap:
            worst = max(worst, (mean, max(gaps)))
            continue
        answers.refuse(
            engine,
            f"{engine.name} does not play version {exported.version} as the learner has it: the log-probabilities "
            f"of the probe differ by {mean:.3f} on average (largest {max(gaps):.3f}), sync.max_probe_gap is "
            f"{config.sync.max_probe_gap:g}",
        )
    answers.check()
    seconds = time.perf_counter() - began
    num_engines = report.num_engines - len(answers.lost)
    found_out = replace(
        report, num_engines=num_engines, probe_gap_mean=worst[0], probe_gap_max=worst[1], probe_seconds=seconds
    )
    return found_out, answers.lost


def _load(exported: Export, engines: Sequence[Engine], config: RunConfig, answers: Answers[object]) -> tuple[int, bool]:
    """Load all engines at once and add to `answers`; returns the bytes sent to each, and whether the channel held."""
    if exported.direct is not None:
        num_bytes, sent, held = exported.direct.send(exported.version, engines)
        answers.add(sent)
        return num_bytes, held
    learners, in_flight = exported.learners, config.sync.update == "in_flight"

    def load(engine: Engine) -> Ref[tuple[int, int]]:
        return engine.handle.load.remote(
            exported.version, learners.num_tensors, exported.bucket_refs, learners.adapter, in_flight
        )

    loads = list(map(load, engines))
    try:
        exported.wait()  # engines that wait for the learner's buckets are not late themselves
    except LearnersLostError as error:
        for engine in engines:
            ray.kill(engine.handle)  # it has loaded only part of the version
        error.stopped = tuple(engine.name for engine in engines)
        raise
    loaded = gather(engines, loads, config.load_within_s(in_flight), again=load)
    answers.add(loaded)
    for engine, (version, _) in loaded.found.items():
        assert version == exported.version, f"{engine.name} answered with version {version}"
    return max((num_bytes for _, num_bytes in loaded.found.values()), default=0), True

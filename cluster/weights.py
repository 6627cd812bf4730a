"""Weights from the learner group to the engines, through Ray's object store.

    learner ranks --bucket i--> object store --> every engine: one session (start, update x N, finish) per version

An engine that cannot take a version is killed, not used: it would go on playing weights that nobody knows.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import ray

from cluster.arena_actor import Engine
from cluster.learner_group import LearnerGroup
from spag_ray.errors import WeightSyncError


@dataclass(frozen=True)
class SyncReport:
    """One published version: seconds from the call to every engine answering on it."""

    version: int
    seconds: float
    num_buckets: int
    num_engines: int


def publish(learners: LearnerGroup, engines: Sequence[Engine], version: int, timeout_s: float = 300.0) -> SyncReport:
    """Give the learner's weights to every engine as `version`.

    Raises WeightSyncError, after killing the engines that failed, and says which and why.
    """
    began = time.perf_counter()
    refs = learners.bucket_refs()
    loads = [engine.handle.load.remote(version, learners.num_tensors, refs, learners.adapter) for engine in engines]
    failed = []
    for engine, load in zip(engines, loads, strict=True):
        try:
            loaded = ray.get(load, timeout=timeout_s)
            assert loaded == version, f"{engine.name} answered with version {loaded}"
        except (ray.exceptions.RayError, ray.exceptions.GetTimeoutError) as error:
            cause = getattr(error, "cause", None) or error
            failed.append(f"{engine.name}: {str(cause).splitlines()[0]}")
            ray.kill(engine.handle)
    if failed:
        raise WeightSyncError(f"version {version} was not taken by {'; '.join(failed)}; these engines were stopped")
    return SyncReport(version, time.perf_counter() - began, len(refs), len(engines))

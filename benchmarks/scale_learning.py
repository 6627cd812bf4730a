"""How much work learners make for the control plane: the parts of `python -m benchmarks.scale --part NAME`.

    batches    samples to the ranks of a learner group, and their scores back
    weights    a version of the weights from rank 0 into the object store

Ranks are simulated: they are actors of the real class with everything but DeepSpeed, so they answer at once. Samples,
the group and every Ray call are those of a run. Ray's processes run on the same cores.
"""

from __future__ import annotations

import pickle
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import ray

from benchmarks.scale_playing import example_episode
from cluster.learning.learner_actor import LearnerActor, Loaded
from cluster.learning.learner_group import LearnerGroup
from cluster.runtime.ray_session import ray_session
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import ClusterConfig, LearnerConfig
from spag_ray.config.run import RunConfig
from spag_ray.episodes.wire import decode, encode
from spag_ray.game.rules import Role
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.shares import Batch
from spag_ray.weights.snapshot import Bucket, checksum

NUM_RANKS = 16
NUM_GAMES = 1024
NUM_BUCKETS = 256
BUCKET_BYTES = 2**20
REPEATS = 3


class SimulatedLearner:
    """A Learner without a model: its score of a token is the token's id, and bucket i is full of i, in memory that all
    buckets share."""

    num_buckets, num_tensors, adapter, vocabulary_size = NUM_BUCKETS, NUM_BUCKETS, None, 2**31

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._staging = np.zeros(BUCKET_BYTES, np.uint8)

    def step(self, batch: Batch, at_start: bool) -> Any:
        return len(batch.samples)

    def score(self, turns: list[Sample], temperature: float, stand_in: Sample | None) -> Any:
        return [np.asarray(turn.target_ids, np.float32) for turn in turns]

    def bucket(self, index: int) -> Bucket | None:
        if self._rank:
            return None
        self._staging[:] = index % 256
        return Bucket(index, (), self._staging, checksum(self._staging))

    def score_here(self, turn: Sample) -> list[float]:
        return [0.0] * len(turn.target_ids)


class SimulatedRank(LearnerActor):
    """A rank of a learner group that has no model."""

    def prepare(self, config: LearnerConfig, num_here: int) -> None:
        """Imports nothing."""

    def start(self, model: str, objective: ObjectiveConfig, rank: int, master: str) -> Loaded:
        self._learner = SimulatedLearner(rank)
        return Loaded(NUM_BUCKETS, NUM_BUCKETS, None, SimulatedLearner.vocabulary_size)


class Counted:
    """An actor's handle that counts the calls of its methods."""

    def __init__(self, handle: Any, calls: Counter[str]) -> None:
        self._handle = handle
        self._calls = calls

    def __getattr__(self, name: str) -> Any:
        self._calls[name] += 1
        return getattr(self._handle, name)


class SimulatedGroup(LearnerGroup):
    actor = SimulatedRank


@contextmanager
def simulated_group(num_ranks: int = NUM_RANKS, name: str = "learner") -> Iterator[tuple[LearnerGroup, Counter[str]]]:
    """A group of simulated ranks, and a count of the calls to them, by method."""
    config = LearnerConfig(num_ranks=num_ranks, num_cpus=0, timeout_s=300)
    with tempfile.TemporaryDirectory(prefix="spag_ray-scale-") as folder:
        group = SimulatedGroup("", RunConfig(learner=config), folder, name)
        group.start()
        calls: Counter[str] = Counter()
        counted: Any = [Counted(rank, calls) for rank in group._ranks]
        ranks, group._ranks = group._ranks, counted
        try:
            yield group, calls
        finally:
            group._ranks = ranks
            group.close()


def example_games(count: int) -> list[GameSample]:
    """Games of 8 trained turns of 64 tokens. No two share an object, as if each came off the wire."""
    data = encode(example_episode(0))
    games = []
    for number in range(count):
        turns = tuple(
            Sample(turn.prompt_ids, turn.token_ids, 0.5, turn.logprobs, role=turn.role) for turn in decode(data).turns
        )
        games.append(GameSample(str(number), Role.ATTACKER, 1.0, turns))
    return games


def store_bytes() -> int:
    """Bytes of all objects that were ever put into the object store."""
    from ray._private.internal_api import get_memory_info_reply, get_state_from_address

    state = get_state_from_address(ray.get_runtime_context().gcs_address)
    return int(get_memory_info_reply(state).store_stats.cumulative_created_bytes)


def batches() -> dict[str, Any]:
    """One step and one scoring pass over `NUM_GAMES` games."""
    games = example_games(NUM_GAMES)
    size = len(pickle.dumps(games))
    found: dict[str, Any] = {"ranks": NUM_RANKS, "games": NUM_GAMES, "sample_bytes": size}
    with ray_session(ClusterConfig(object_store_gib=2)), simulated_group() as (group, _):
        for name, call in (("step", lambda: group.step(games, [])), ("score", lambda: group.score_games(games, 1.0))):
            took = []
            before = store_bytes()
            for _ in range(REPEATS):
                began = time.perf_counter()
                call()
                took.append(time.perf_counter() - began)
            time.sleep(1.0)  # the object store's counts are reported with a delay
            found[f"{name}_bytes_share"] = round((store_bytes() - before) / REPEATS / size, 3)
            found[f"{name}_games_per_s"] = round(NUM_GAMES / statistics.median(took))
    return found


def weights() -> dict[str, Any]:
    """Calls and seconds for one version: every bucket in the object store, the probe scored."""
    took, calls_of_all = [], 0
    with ray_session(ClusterConfig(object_store_gib=2)), simulated_group() as (group, calls):
        for _ in range(REPEATS + 1):
            calls.clear()
            began = time.perf_counter()
            refs = group.bucket_refs()
            probe = group.probe_ref((1, 2), (3, 4))
            asked = time.perf_counter() - began
            ray.wait([*refs, probe], num_returns=len(refs) + 1, fetch_local=False)
            took.append((time.perf_counter() - began, asked))
            calls_of_all = sum(calls.values())
            assert [int(bucket.payload[0]) for bucket in ray.get(refs[:3])] == [0, 1, 2]
            del refs
    whole, asked = (statistics.median(column) for column in zip(*took[1:], strict=True))
    return {
        "ranks": NUM_RANKS,
        "buckets": NUM_BUCKETS,
        "bucket_bytes": BUCKET_BYTES,
        "calls": calls_of_all,
        "calls_per_rank": round(calls_of_all / NUM_RANKS, 2),
        "submit_s": round(asked, 4),
        "seconds": round(whole, 3),
    }

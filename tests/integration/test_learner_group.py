"""A learner group's calls on Ray: what each rank is sent, and how a version of the weights comes back. The ranks are
the real actors without a model (benchmarks/scale_learning.py)."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import ray

from benchmarks.scale_learning import BUCKET_BYTES, NUM_BUCKETS, example_games, simulated_group
from cluster.learning.learner_group import LearnerGroup
from spag_ray.errors import LearnerError, LearnersLostError
from spag_ray.training_data.samples import Sample

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.fixture(scope="module")
def three(local_ray: None) -> Iterator[tuple[LearnerGroup, Counter[str]]]:
    with simulated_group(num_ranks=3) as group:
        yield group


def test_a_version_takes_four_calls_per_rank_and_all_buckets_arrive(three: tuple[LearnerGroup, Counter[str]]) -> None:
    group, calls = three
    calls.clear()
    refs = group.bucket_refs()
    probed = ray.get(group.probe_ref((1, 2), (3, 4)))
    assert sum(calls.values()) <= 4 * 3
    assert probed == [0.0, 0.0]
    assert len(refs) == NUM_BUCKETS
    for index, bucket in enumerate(ray.get(refs)):
        assert bucket.index == index
        assert bucket.payload.nbytes == BUCKET_BYTES
        assert set(bucket.payload[:: BUCKET_BYTES // 8].tolist()) == {index % 256}
        bucket.verify()


def test_every_sample_goes_to_one_rank_and_every_score_to_its_turn(three: tuple[LearnerGroup, Counter[str]]) -> None:
    group, _ = three
    games = example_games(2)
    scored = group.score_games(games, 1.0)
    for game, before in zip(scored, games, strict=True):
        # A simulated rank answers with what it was sent, so this finds a score of another turn.
        assert list(game.turns) == [replace(t, old_logprobs=list(map(float, t.target_ids))) for t in before.turns]
    assert group.score_games([], 1.0) == []
    reports = group.step(games, [])
    assert reports == len(games[0].turns)


def test_samples_that_the_model_cannot_read_are_refused_unsent(three: tuple[LearnerGroup, Counter[str]]) -> None:
    group, calls = three
    calls.clear()
    with pytest.raises(LearnerError, match="sample 0 has token id"):
        group.check([Sample((1,), (-1,))])
    assert not calls


def test_a_rank_that_dies_during_an_export_ends_it() -> None:
    with simulated_group(num_ranks=2, name="dying") as (group, _):
        refs = group.bucket_refs()
        counted: Any = group._ranks[0]
        ray.kill(counted._handle)
        with pytest.raises(ray.exceptions.RayActorError):
            ray.get(refs)
        with pytest.raises(LearnersLostError):
            group.check_alive(wait_s=5.0)

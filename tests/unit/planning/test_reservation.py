"""A run has room for all its engines and learner ranks, or holds none and says what it waits for."""

import math
from pathlib import Path
from typing import Any

import pytest

from cluster.planning.placement import ActorSpec, Rooms, Unplaced, actors_of, totals
from cluster.planning.reservation import NodeUse, bundles_of, match_bundles, missing_room, num_that_fit
from cluster.types import NodeResources
from spag_ray.config.loading import load_config, parse_config
from tests.support.shipped import SHIPPED


def bundles(**changes: Any) -> list[tuple[str, float, float]]:
    return [(bundle.kind, bundle.num_cpus, bundle.num_gpus) for bundle in bundles_of(parse_config(changes))]


def test_every_engine_and_every_rank_has_a_bundle() -> None:
    assert bundles(engine={"num_engines": 2, "num_gpus": 1}, learner={"num_ranks": 2, "num_gpus": 1}) == [
        ("engine", 1, 1),
        ("engine", 1, 1),
        ("learner", 1, 1),
        ("learner", 1, 1),
    ]
    league = {"past_share": 0.2, "fixed": [{"model": "/models/x", "share": 0.1}]}
    kinds = [kind for kind, _, _ in bundles(policies="separate", league=league)]
    assert kinds.count("engine") == 5
    assert kinds.count("learner") == 2


def test_as_many_runs_fit_as_find_all_their_places_on_nodes() -> None:
    def fit(nodes: list[tuple[float, float]], **changes: Any) -> int:
        named = [NodeResources(f"10.0.0.{n}", cpus, gpus) for n, (cpus, gpus) in enumerate(nodes)]
        return num_that_fit(parse_config(changes), named, most=5)

    wide: dict[str, Any] = {"engine": {"num_gpus": 2, "tensor_parallel_size": 2}, "learner": {"num_gpus": 1}}
    assert fit([(16, 8)], **wide) == 2, "8 GPUs have room for two runs of 3"
    assert fit([(16, 1), (16, 1), (16, 1)], **wide) == 0, "the two GPUs of an engine are on one node"
    assert fit([(1, 8), (1, 8)], **wide) == 1, "CPUs count, too"
    assert fit([(64, 64)], **wide) == 5, "no more than there are"
    growing = {"num_engines": {"min": 1, "max": 3}}
    assert fit([(8, 0)], engine=growing) == 2, "no run grows into the room of another"
    assert fit([(8, 0)]) == 4


def test_ranks_are_together_as_far_as_the_engine_of_the_last_match_needs_their_places() -> None:
    wide = {"num_gpus": 4, "tensor_parallel_size": 4}
    ranks = {"num_ranks": 6, "num_gpus": 1}
    learners = [bundle for bundle in bundles(engine=wide, learner=ranks) if bundle[0] == "learner"]
    assert learners == [("learner", 4, 4), ("learner", 1, 1), ("learner", 1, 1)]
    no_match = bundles(engine=wide, learner=ranks, evaluation={"games": 0})
    assert [bundle for bundle in no_match if bundle[0] == "learner"] == [("learner", 1, 1)] * 6


def test_ranks_that_share_gpus_with_engines_do_not_share_one_with_each_other() -> None:
    halves = {"num_gpus": 0.5, "num_cpus": 2}, {"num_gpus": 0.5, "num_cpus": 1, "num_ranks": 2}
    learners = [bundle for bundle in bundles(engine=halves[0], learner=halves[1]) if bundle[0] == "learner"]
    assert learners == [("learner", 2, 0.5), ("learner", 1, 0.5)], "the first has the CPUs of a match's engine"


def nodes(*uses: tuple[float, float]) -> list[NodeUse]:
    """(GPUs, of which so many are free) of each."""
    return [NodeUse(NodeResources(f"node-{n}", 16, has), 16, free) for n, (has, free) in enumerate(uses)]


def test_what_is_missing_is_said_with_who_has_it() -> None:
    assert missing_room("engine-policy-1", 1, 2, nodes((4, 0), (4, 1))) == (
        "2 GPUs for engine-policy-1: the cluster has 8, 7 are taken (node-0 4/4, node-1 3/4)"
    )
    assert missing_room("x", 40, 0, nodes((0, 0))).startswith("40 CPUs for x: the cluster has 16, 0 are taken")
    assert "free in total, but not on single nodes as needed" in missing_room("x", 1, 2, nodes((1, 1), (1, 1)))
    many = missing_room("x", 1, 99, nodes(*[(1, 0)] * 20))
    assert "node-7 1/1, and 12 more)" in many
    assert "node-8" not in many
    assert "are taken (node-0 0.6/1)" in missing_room("x", 0.5, 0.6, nodes((1, 0.4)))


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_a_match_has_room_where_the_run_has(path: Path) -> None:
    config = load_config(str(path))
    num_cpus, num_gpus = totals(actors_of(config))
    nodes = [NodeResources("node-0", math.ceil(num_cpus), math.ceil(num_gpus - 1e-6))]
    assert not isinstance(Rooms(nodes).place(actors_of(config)), Unplaced), "the smallest machine for the run"
    match = [ActorSpec(each.kind, "EngineActor", 1, each.num_cpus, each.num_gpus) for each in match_bundles(config)]
    assert len(match) == (1 if config.plays_in_turn else 2) * config.engine.min_engines
    assert not isinstance(Rooms(nodes).place(match), Unplaced)

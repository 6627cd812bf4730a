"""Actors find their CPUs and GPUs on one node each, or it is said before anything starts why they do not."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster.planning.placement import (
    ActorSpec,
    PlacedActor,
    Rooms,
    Unplaced,
    actors_of,
    match_actors,
    num_on_one_gpu,
    placement_doubt,
    placement_fault,
    totals,
    with_room_for_engines,
)
from cluster.types import NodeResources
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError


def config_of(**changes: Any) -> RunConfig:
    base: dict[str, Any] = {"engine": {"num_gpus": 1, "num_engines": 4}, "learner": {"num_gpus": 1, "num_ranks": 4}}
    for key, value in changes.items():
        base[key] = {**base.get(key, {}), **value} if isinstance(value, dict) else value
    return parse_config(base)


def nodes_of(*gpus: int, cpus: float = 64) -> list[NodeResources]:
    return [NodeResources(f"node-{index}", cpus, count) for index, count in enumerate(gpus)]


def test_eight_gpus_hold_four_engines_and_four_ranks() -> None:
    assert placement_fault(config_of(), nodes_of(8)) is None
    assert totals(actors_of(config_of())) == (8, 8)


def test_too_few_gpus_in_all_are_counted_with_their_keys() -> None:
    fault = placement_fault(config_of(), nodes_of(4)) or ""
    assert fault.startswith("8 GPUs are needed (1 x 4 engines of engine.num_gpus 1")
    assert "Ray has 4; ask for fewer" in fault


def test_an_engine_over_four_gpus_does_not_fit_on_two_nodes_of_two() -> None:
    config = config_of(engine={"num_engines": 1, "num_gpus": 4, "tensor_parallel_size": 4}, learner={"num_ranks": 1})
    assert placement_fault(config, nodes_of(4, 4)) is None
    fault = placement_fault(config, nodes_of(2, 2, 2)) or ""
    assert "4 GPUs on one node" in fault
    assert "engine.tensor_parallel_size" in fault


def test_tensor_parallelism_needs_as_many_gpus_as_it_says() -> None:
    fault = placement_fault(config_of(engine={"tensor_parallel_size": 2}), nodes_of(8)) or ""
    assert "engine.num_gpus is 1; set it to 2" in fault


def test_more_than_one_gpu_is_a_whole_number_of_them() -> None:
    fault = placement_fault(config_of(engine={"num_gpus": 1.5}), nodes_of(16)) or ""
    assert "engine.num_gpus is 1.5" in fault


@pytest.mark.parametrize(
    ("memory", "said"),
    [
        ({}, "engine-policy-0 and engine-policy-1 on one GPU"),
        ({"gpu_memory_utilization": 0.4}, "learner-0 and learner-1 on one GPU, but NCCL allows one rank per GPU"),
    ],
)
def test_two_engines_or_two_ranks_of_a_group_that_ray_would_put_on_one_gpu_are_refused(
    memory: dict[str, float], said: str
) -> None:
    def fault(of_engine: float, of_rank: float) -> str | None:
        shared = {"placement": "colocated", "evaluation": {"games": 0}}
        engine = {"num_engines": 2, "num_gpus": of_engine, **memory}
        return placement_fault(
            config_of(engine=engine, learner={"num_ranks": 2, "num_gpus": of_rank}, **shared), nodes_of(2)
        )

    assert said in (fault(0.5, 0.5) or "")
    assert fault(0.6, 0.4) is None


def test_colocated_actors_land_on_each_others_gpus() -> None:
    engines = ActorSpec("engine", "EngineActor", 4, 1, 0.6, "engine")
    ranks = ActorSpec("learner", "LearnerActor", 4, 1, 0.4, "learner")
    placed = Rooms(nodes_of(2, 2)).place([engines, ranks])
    assert not isinstance(placed, Unplaced)
    places = [(actor.node, actor.gpus) for actor in placed]
    assert sorted(places[:4]) == sorted(places[4:])
    assert len(set(places)) == 4


def test_the_match_at_the_end_needs_room_where_the_learners_were() -> None:
    small = config_of(engine={"num_engines": 1, "num_gpus": 0.6}, learner={"num_ranks": 1, "num_gpus": 0.4})
    fault = placement_fault(small, nodes_of(1)) or ""
    assert fault.startswith("the match at the end of the run has no room: engine-imitated-policy")
    even = config_of(engine={"num_engines": 1, "num_gpus": 0.5}, learner={"num_ranks": 1, "num_gpus": 0.5})
    fault = placement_fault(even, nodes_of(1)) or ""
    assert "set it to at most 0.48" in fault
    less = {"num_engines": 1, "num_gpus": 0.5, "gpu_memory_utilization": 0.45}
    assert placement_fault(config_of(engine=less, learner={"num_ranks": 1, "num_gpus": 0.5}), nodes_of(1)) is None
    assert match_actors(config_of(evaluation={"games": 0})) == []


def test_engines_that_share_gpus_with_learners_play_earlier_stages_in_turn_and_need_no_room_for_others() -> None:
    shared = {"placement": "colocated", "evaluation": {"against": ["base"]}}
    one = {"num_engines": 1, "num_gpus": 0.6, "gpu_memory_utilization": 0.85}
    config = config_of(engine=one, learner={"num_ranks": 1, "num_gpus": 0.4}, **shared)
    assert config.plays_in_turn
    assert placement_fault(config, nodes_of(1)) is None, "no second engine beside the first, at full size"
    assert [spec.name for spec in actors_of(config) if spec.kind == "engine"] == ["engine-policy"]
    assert match_actors(config) == []
    own = config_of(
        engine=one, learner={"num_ranks": 1, "num_gpus": 0.4}, **shared | {"evaluation": {"engines": "own"}}
    )
    assert not own.plays_in_turn
    assert "the match at the end of the run has no room" in str(placement_fault(own, nodes_of(1)))


@pytest.mark.parametrize(
    ("changes", "in_turn", "why"),
    [
        ({}, False, None),
        ({"placement": "colocated"}, True, None),
        ({"placement": "colocated", "learner": {"num_gpus": 0}}, False, None),
        ({"placement": "colocated", "learner": {"lora": {}}}, True, None),
        ({"placement": "colocated", "learner": {"lora": {"export": "adapter"}}}, False, "lora.export: adapter"),
        ({"self_play": {"on_collapse": "mix"}, "evaluation": {"against": ["base"]}}, False, "on_collapse: mix"),
        ({"schedule": "stream", "self_play": {"games_per_round": 64}}, False, "schedule: stream"),
    ],
)
def test_who_plays_earlier_stages_follows_from_the_placement_unless_it_is_said(
    changes: dict[str, Any], in_turn: bool, why: str | None
) -> None:
    config = config_of(**changes)
    assert config.plays_in_turn is in_turn
    evaluation = changes.get("evaluation", {})
    assert not config_of(**changes | {"evaluation": {**evaluation, "engines": "own"}}).plays_in_turn
    said = changes | {"evaluation": {**evaluation, "engines": "in_turn"}}
    if why is None:
        assert config_of(**said).plays_in_turn
        return
    with pytest.raises(ConfigError, match=rf"evaluation\.engines: in_turn: with .*{why}.*set evaluation\.engines: own"):
        config_of(**said)


@pytest.mark.parametrize(
    ("share", "count", "utilization"),
    [(0.5, 2, 0.4), (0.5, 1, 0.8), (0.6, 2, 0.8), (1, 2, 0.8), (2, 2, 0.8), (0.2, 2, 0.4), (0, 2, 0.8)],
)
def test_engines_on_one_gpu_divide_its_memory(share: float, count: int, utilization: float) -> None:
    engine = {"num_gpus": share, "gpu_memory_utilization": 0.8}
    config = config_of(engine=engine, placement="colocated")
    changed = with_room_for_engines(config, count)
    assert with_room_for_engines(changed, count) == changed, "they fit now"
    assert changed.engine.gpu_memory_utilization == utilization
    placed = Rooms(nodes_of(8)).place([ActorSpec("engine", "EngineActor", count, 1, share)])
    assert not isinstance(placed, Unplaced)
    gpus = [gpu for actor in placed for gpu in actor.gpus]
    assert max((gpus.count(gpu) for gpu in gpus), default=1) == min(count, num_on_one_gpu(share)), "as Ray fills GPUs"


def test_the_leagues_engines_and_both_policies_are_counted() -> None:
    config = config_of(
        policies="separate",
        league={
            "past_share": 0.2,
            "num_engines": 2,
            "fixed": [{"model": model, "share": 0.1} for model in ("/models/x", "scripted", "http://127.0.0.1:1/v1#m")],
        },
    )
    counts = {spec.name: spec.count for spec in actors_of(config) if spec.kind != "other"}
    assert counts == {
        "engine-attacker": 4,
        "engine-defender": 4,
        "learner-attacker": 4,
        "learner-defender": 4,
        "engine-attacker-past": 2,
        "engine-defender-past": 2,
        "engine-fixed": 1,
    }


def test_frozen_opponents_have_an_engine_for_each_policy_and_play_the_last_match_too() -> None:
    config = config_of(policies="separate", evaluation={"against": ["base", "imitated"]})
    frozen = [spec.name for spec in actors_of(config) if "base" in spec.name or "imitated" in spec.name]
    names = ("base-attacker", "base-defender", "imitated-attacker", "imitated-defender")
    assert frozen == [f"engine-{name}" for name in names]
    assert match_actors(config) == []
    assert len(match_actors(config_of(evaluation={"against": ["base"]}))) == 1
    none_later = config_of(evaluation={"against": ["base"]}, imitation={"enabled": False}, self_play={"rounds": 0})
    assert not any("base" in spec.name for spec in actors_of(none_later)), "nobody comes to play it"


def test_a_listener_has_one_engine_unless_a_frozen_opponent_has_it_already() -> None:
    def engines(**changes: Any) -> list[str]:
        return [spec.name for spec in actors_of(config_of(**changes)) if spec.kind == "engine"]

    heard = {"objective": {"information_gain": 0.5}}
    assert engines(**heard) == ["engine-policy", "engine-listener"]
    assert engines(**heard, policies="separate")[-1] == "engine-listener", "that of the seat that guesses alone"
    assert engines(**heard, evaluation={"against": ["imitated"]}) == ["engine-policy", "engine-imitated-policy"]
    assert engines(**heard, evaluation={"against": ["base"]})[-2:] == ["engine-base-policy", "engine-listener"]
    assert match_actors(config_of(**heard)) == [], "the listener's engine plays the last match"
    assert len(match_actors(config_of(**heard, policies="separate"))) == 1, "it plays one of the two seats"
    other = {"objective": {"information_gain": 0.5, "listener": "base"}}
    assert len(match_actors(config_of(**other))) == 1
    assert engines(**heard, self_play={"rounds": 0}) == ["engine-policy"], "no game is trained on"
    assert totals(actors_of(config_of(**heard)))[1] == totals(actors_of(config_of()))[1] + 1
    assert placement_fault(config_of(), nodes_of(8)) is None
    assert "9 GPUs are needed" in str(placement_fault(config_of(**heard), nodes_of(8)))


def test_a_placement_that_hangs_on_how_ray_fills_nodes_is_doubted() -> None:
    config = config_of(
        engine={"num_engines": 1, "num_gpus": 4, "tensor_parallel_size": 4},
        learner={"num_ranks": 4},
        league={"past_share": 0.2},
    )
    assert placement_fault(config, nodes_of(4, 4, 4)) is None
    assert "only if Ray fills nodes" in str(placement_doubt(config, nodes_of(4, 4, 4)))
    assert placement_doubt(config_of(), nodes_of(8)) is None


SPECS = st.builds(
    ActorSpec,
    name=st.sampled_from("abc"),
    class_name=st.just("EngineActor"),
    count=st.integers(1, 4),
    num_cpus=st.sampled_from([0.0, 0.5, 2.0]),
    num_gpus=st.sampled_from([0.0, 0.25, 0.4, 0.6, 1.0, 2.0]),
)


@given(specs=st.lists(SPECS, max_size=6), gpus=st.lists(st.integers(0, 4), min_size=1, max_size=3))
def test_no_node_and_no_gpu_is_given_out_twice(specs: list[ActorSpec], gpus: list[int]) -> None:
    nodes = nodes_of(*gpus, cpus=4)
    placed = Rooms(nodes).place(specs)
    if isinstance(placed, Unplaced):
        return
    assert len(placed) == sum(spec.count for spec in specs)
    for node in nodes:
        here: list[PlacedActor] = [actor for actor in placed if actor.node == node.name]
        assert sum(actor.spec.num_cpus for actor in here) <= node.num_cpus + 1e-6
        for gpu in range(int(node.num_gpus)):
            assert sum(min(actor.spec.num_gpus, 1) for actor in here if gpu in actor.gpus) <= 1 + 1e-6
    assert all(len(actor.gpus) == -(-actor.spec.num_gpus // 1) for actor in placed)

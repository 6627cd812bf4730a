"""A run has room for all its engines and learner ranks, or holds none and says what it waits for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from conftest import TARGETS
from runs import records_of, tiny_run

from cluster.launch import placed_run
from cluster.placement import NodeResources
from cluster.places import Places
from cluster.room import Bundle, NodeUse, bundles_of, missing_room
from cluster.run_folder import make_run_folder
from cluster.runtime import ClusterError
from spag_ray.config import ClusterConfig, parse_config
from spag_ray.errors import StopRequestedError

ENGINE, LEARNER = Bundle("engine", 1, 0), Bundle("learner", 1, 0)


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
    assert kinds.count("engine") == 5 and kinds.count("learner") == 2


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
    assert "so much is free, but not in pieces that fit" in missing_room("x", 1, 2, nodes((1, 1), (1, 1)))
    many = missing_room("x", 1, 99, nodes(*[(1, 0)] * 20))
    assert "node-7 1/1, and 12 more)" in many and "node-8" not in many
    assert "are taken (node-0 0.6/1)" in missing_room("x", 0.5, 0.6, nodes((1, 0.4)))


@ray.remote(num_cpus=1)
class Holder:
    """Somebody else's actor."""


@pytest.fixture
def holder(local_ray: None) -> Iterator[Any]:
    """Holds one of two CPUs."""
    holder = Holder.remote()
    ray.get(holder.__ray_ready__.remote())
    yield holder
    ray.kill(holder)


def free_cpus() -> float:
    return ray.available_resources().get("CPU", 0.0)


def wait_until(is_so: Any, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_room_that_does_not_come_is_an_error_that_says_what_was_missing(holder: Any) -> None:
    places = Places(ClusterConfig(placement_timeout_s=1), "places-late")
    with pytest.raises(ClusterError, match=r"no room within cluster.placement_timeout_s \(1 s\) for 2 CPUs for all"):
        places.reserve([ENGINE, LEARNER])
    assert free_cpus() == 1, "nothing of it is held any more"


def test_whoever_waits_for_room_can_be_stopped(holder: Any) -> None:
    def check() -> None:
        raise StopRequestedError("the run was asked to stop")

    with pytest.raises(StopRequestedError):
        Places(ClusterConfig(), "places-stopped", check=check).reserve([ENGINE, LEARNER])
    assert free_cpus() == 1


def test_two_runs_that_need_all_there_is_have_it_one_after_the_other(local_ray: None) -> None:
    came: list[str] = []

    def run(name: str) -> None:
        places = Places(ClusterConfig(placement_timeout_s=60), f"places-{name}")
        places.reserve([ENGINE, LEARNER])
        came.append(f"{name} has all")
        time.sleep(1.0)
        came.append(f"{name} is done")
        places.close()

    threads = [threading.Thread(target=run, args=(name,)) for name in ("a", "b")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert came in (
        ["a has all", "a is done", "b has all", "b is done"],
        ["b has all", "b is done", "a has all", "a is done"],
    )
    wait_until(lambda: free_cpus() == 2, 10)


def test_a_place_is_for_its_kind_until_the_learners_are_done(local_ray: None) -> None:
    places = Places(ClusterConfig(), "places-kinds")
    assert places.take("before", "engine", 1, 0) == {}, "nothing is reserved: Ray finds room"
    places.reserve([ENGINE, Bundle("learner", 1, 0)])
    assert places.take("engine", "engine", 1, 0)["scheduling_strategy"].placement_group_bundle_index == 0
    assert places.take("added", "engine", 1, 0) == {}, "the learner's place is not for an engine more"
    places.leave("engine")
    assert places.take("engine.2", "engine", 1, 0)["scheduling_strategy"].placement_group_bundle_index == 0
    ranks = [places.take(f"rank-{n}", "learner", 0.5, 0) for n in range(3)]
    assert [bool(rank) for rank in ranks] == [True, True, False]
    for rank in range(2):
        places.leave(f"rank-{rank}")
    places.learners_are_done()
    assert places.take("match", "engine", 1, 0)["scheduling_strategy"].placement_group_bundle_index == 1
    places.close()
    places.leave("match")  # whoever ends later has nothing to give back
    wait_until(lambda: free_cpus() == 2, 10)


@pytest.mark.slow
def test_a_run_holds_nothing_while_it_waits_for_room_says_so_and_goes_on(
    holder: Any, tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers"},
        imitation={"enabled": False},
        objective={"learn_from": "both"},
        game={"breach": "penalise"},
        self_play={"rounds": 1, "games_per_round": 8},
        evaluation={"games": 0},
        checkpoint={"enabled": False},
    )
    folder = make_run_folder(tmp_path / "run", config)
    with placed_run(config, folder, config.model, list(TARGETS[2:]), list(TARGETS[:2]), {}) as run:
        training = run.train.remote()
        wait_until(lambda: ray.get(run.status.remote()).notes, 60)
        status = ray.get(run.status.remote())
        assert status.stage == "waiting for room"
        assert status.notes == (
            "waiting for 2 CPUs for all engines and learners: the cluster has 2, 1 is taken (127.0.0.1 1/2)",
        )
        assert free_cpus() == 1
        ray.kill(holder)
        ray.get(training)
    assert len(records_of(folder, "sync")) == 1
    wait_until(lambda: free_cpus() == 2, 20)

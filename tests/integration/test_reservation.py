"""Runs that wait for room on a real Ray get it one after the other."""

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray

from cluster.launch.placed_run import placed_run
from cluster.planning.reservation import Bundle, Reservation
from cluster.runtime.ray_session import ClusterError
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.parts import ClusterConfig
from spag_ray.errors import StopRequestedError
from tests.support.runs import PENALISED, records_of, tiny_run
from tests.support.tiny_model import TARGETS
from tests.support.waiting import wait_until

ENGINE, LEARNER = Bundle("engine", 1, 0), Bundle("learner", 1, 0)


@ray.remote(num_cpus=1)
class Holder:
    """Somebody else's actor."""


@pytest.fixture
def holder(local_ray: None) -> Iterator[Any]:
    """Holds one of two CPUs."""
    actor: Any = Holder
    holder = actor.remote()
    ray.get(holder.__ray_ready__.remote())
    yield holder
    ray.kill(holder)


def free_cpus() -> float:
    return ray.available_resources().get("CPU", 0.0)


def test_room_that_does_not_come_is_an_error_that_says_what_was_missing(holder: Any) -> None:
    places = Reservation(ClusterConfig(placement_timeout_s=1), "places-late")
    with pytest.raises(ClusterError, match=r"no room within cluster.placement_timeout_s \(1 s\) for 2 CPUs for all"):
        places.reserve([ENGINE, LEARNER])
    assert free_cpus() == 1, "nothing of it is held any more"


def test_whoever_waits_for_room_can_be_stopped(holder: Any) -> None:
    def check() -> None:
        raise StopRequestedError("the run was asked to stop")

    with pytest.raises(StopRequestedError):
        Reservation(ClusterConfig(), "places-stopped", check=check).reserve([ENGINE, LEARNER])
    assert free_cpus() == 1


def test_two_runs_that_need_all_there_is_have_it_one_after_the_other(local_ray: None) -> None:
    came: list[str] = []

    def run(name: str) -> None:
        places = Reservation(ClusterConfig(placement_timeout_s=60), f"places-{name}")
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
    places = Reservation(ClusterConfig(), "places-kinds")
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
    places.leave("match")  # one that ends later has nothing to give back
    wait_until(lambda: free_cpus() == 2, 10)


def test_a_run_that_waits_for_room_holds_nothing(holder: Any, tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers"},
        imitation={"enabled": False},
        objective={"learn_from": "both"},
        game={"payoffs": PENALISED},
        self_play={"rounds": 1, "games_per_round": 8},
        evaluation={"games": 0},
        checkpoint={"enabled": False},
    )
    folder = make_run_folder(tmp_path / "run", config)
    with placed_run(config, folder, config.model, {"taboo": TARGETS[2:]}, {"taboo": TARGETS[:2]}, {}) as run:
        training = run.train.remote()
        wait_until(lambda: ray.get(run.status.remote()).notes, 60)
        status = ray.get(run.status.remote())
        assert status.stage == "waiting for free CPUs and GPUs"
        assert status.notes == (
            "waiting for 2 CPUs for all engines and learners: the cluster has 2, 1 is taken (127.0.0.1 1/2)",
        )
        assert free_cpus() == 1
        ray.kill(holder)
        ray.get(training)
    assert len(records_of(folder, "sync")) == 1
    wait_until(lambda: free_cpus() == 2, 20)

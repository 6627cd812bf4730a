"""Engines that come and go while a run lasts, on a cluster of several nodes, all of them on this machine."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from cluster.launch.placed_run import placed_run
from cluster.run.run import SESSIONS
from cluster.runtime.ray_session import node_of
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.loading import parse_config
from tests.support.draining import drain, nodes_of_one_cpu
from tests.support.runs import records_of, stream_run
from tests.support.tiny_model import TARGETS
from tests.support.waiting import wait_until

NUM_PARTS = 1000  # versions or rounds of 8 games, more than there is time for: the tests stop their runs


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    with nodes_of_one_cpu(2) as cluster:
        yield cluster


@pytest.fixture
def run(nodes: Cluster, tiny_model: Path, words: Path, tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A run of engines and a learner, of which no two fit on one node. `request.param`: (schedule, engine.num_engines,
    kind of the line in metrics.jsonl that shows that it plays)."""
    schedule, num_engines, plays = request.param
    config = stream_run(
        tiny_model,
        words,
        NUM_PARTS,
        engine={"num_cpus": 0.6, "kind": "transformers", "num_engines": num_engines, "max_num_seqs": 4},
        learner={"num_cpus": 0.6},
        checkpoint={"every_versions": NUM_PARTS},
        supervision={"heartbeat_timeout_s": 30},
    )
    config = parse_config(config.model_dump(mode="json") | {"schedule": schedule})
    folder = make_run_folder(tmp_path / "run", config)
    targets = list(TARGETS)
    with placed_run(config, folder, config.model, {"taboo": targets[2:]}, {"taboo": targets[:2]}, {}) as handle:
        training = handle.train.remote()
        wait_until(lambda: (folder / "metrics.jsonl").exists() and len(records_of(folder, plays)) >= 2, 120)
        yield handle
        handle.stop_soon.remote(0.0)
        ray.wait([training], timeout=60)


@pytest.mark.long  # a cluster of several nodes
@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "run", [("rounds", {"min": 1, "max": 2, "grow_after_s": 2, "shrink_after_s": 600}, "games")], indirect=True
)
def test_an_engine_is_added_on_a_new_node_and_leaves_when_it_drains(nodes: Cluster, run: Any, tmp_path: Path) -> None:
    """A round of 8,000 games, eight at once, has more turns under way than the four that an engine decodes at once."""

    def lines(kind: str) -> list[dict[str, Any]]:
        return records_of(tmp_path / "run", kind)

    def added() -> list[str]:
        return [line["engine"] for line in lines("engine_joined")]

    time.sleep(8)
    assert not added(), "no node has room for a second engine"
    new = nodes.add_node(num_cpus=1)
    wait_until(lambda: len(added()) == 1, 90)
    assert node_of(ray.get_actor(f"{added()[0]}-run")) == new.node_id

    retire = run.__ray_call__.options(concurrency_group=SESSIONS)  # the default group's one thread trains

    def one_less(run: Any) -> None:
        fleet = run._parts.fleet
        fleet.retire(fleet.roster.records[-1], "fewer are needed")

    ray.get(retire.remote(one_less), timeout=120)
    wait_until(lambda: len(added()) == 2, 90)  # the load asks for it again

    drain(nodes, new.node_id)
    wait_until(lambda: len(lines("engine_left")) == 2, 60)
    assert [line["engine"] for line in lines("engine_left")] == added()
    reasons = [line["reason"] for line in lines("engine_left")]
    assert reasons == ["fewer are needed", f"its node {new.node_id[:6]} is drained"]
    count = len(lines("games"))
    wait_until(lambda: len(lines("games")) > count + 1, 60)
    assert not lines("restart"), "nothing was lost"


@pytest.mark.long  # the same nodes and another run
@pytest.mark.timeout(400)
@pytest.mark.parametrize("run", [("stream", 1, "sync")], indirect=True)
def test_a_checkpoint_is_written_when_the_learners_node_is_drained(nodes: Cluster, run: Any, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    before = len(records_of(folder, "checkpoint"))
    learner = ray.get_actor("learner-run-0")
    drain(nodes, node_of(learner))
    wait_until(lambda: len(records_of(folder, "checkpoint")) > before, 60)
    engine = node_of(ray.get_actor("engine-policy-0-run"))
    drain(nodes, engine)
    count = len(records_of(folder, "sync"))
    wait_until(lambda: len(records_of(folder, "sync")) > count + 1, 60)
    assert not records_of(folder, "engine_left"), "the only engine plays on until its node ends"

"""A cluster of several nodes, all of them on this machine."""

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from ray.cluster_utils import Cluster

from cluster.launch.placed_run import placed_run
from cluster.runtime.ray_session import node_of as seen_node_of
from cluster.runtime.ray_session import ray_session
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.parts import ClusterConfig
from tests.support.faults import FaultyRun
from tests.support.runs import PENALISED, records_of, stream_run, tiny_run
from tests.support.tiny_model import TARGETS


@pytest.fixture
def nodes(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """A head that runs nothing that asks for a CPU, and nodes of one CPU each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(request.param):
        cluster.add_node(num_cpus=1)
    with ray_session(ClusterConfig(address=cluster.address)):
        yield cluster
    cluster.shutdown()


def node_of(actor: str) -> str:
    handle = ray.get_actor(actor)
    node: str = ray.get(handle.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
    return node


@pytest.mark.timeout(400)
@pytest.mark.parametrize("nodes", [2], indirect=True)
def test_a_learner_group_meets_across_nodes_with_an_engine_beside_each_rank(
    nodes: Cluster, tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    half = {"num_cpus": 0.5}
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers", "num_engines": 2, "env": {"SPAG_TEST": "engine"}, **half},
        learner={"num_ranks": 2, "zero_stage": 3, "env": {"GLOO_SOCKET_IFNAME": "lo"}, "num_threads": None, **half},
        imitation={"enabled": False},
        game={"payoffs": PENALISED},
        objective={"learn_from": "both"},
        self_play={"rounds": 2, "games_per_round": 16},
        evaluation={"games": 0},
        cluster={"strategy": "spread"},
    )
    folder = make_run_folder(tmp_path / "run", config)
    targets = list(TARGETS)
    with placed_run(config, folder, config.model, {"taboo": targets[2:]}, {"taboo": targets[:2]}, {}) as run:
        training = run.train.remote()
        while not (folder / "metrics.jsonl").exists() or not records_of(folder, "sync"):
            assert not ray.wait([training], timeout=0.2)[0], ray.get(training)
        assert seen_node_of(run) == nodes.head_node.node_id, "where it was started: others may be taken away"
        ranks = [node_of(f"learner-run-{rank}") for rank in range(2)]
        engines = [node_of(f"engine-policy-{number}-run") for number in range(2)]
        engine = ray.get_actor("engine-policy-0-run")
        assert ray.get(engine.__ray_call__.remote(lambda _: os.environ["SPAG_TEST"])) == "engine"
        ray.get(training)
    assert len(set(ranks)) == len(set(engines)) == 2, "one of each on each node"
    syncs = records_of(folder, "sync")
    assert [line["num_engines"] for line in syncs] == [2, 2]
    assert all(line["probe_gap_max"] < 1e-3 for line in syncs), "both engines play what the group has learned"


@pytest.mark.long  # four nodes
@pytest.mark.timeout(500)
@pytest.mark.parametrize("nodes", [3], indirect=True)
def test_a_run_outlives_the_nodes_it_runs_on(nodes: Cluster, tiny_model: Path, words: Path, tmp_path: Path) -> None:
    def remove_node(fault: str, chance: random.Random) -> bool:
        actor = "learner-run-0" if fault == "node of the learner" else "engine-policy-0-run"
        node_id = node_of(actor)
        (node,) = (node for node in nodes.worker_nodes if node.node_id == node_id)
        nodes.remove_node(node, allow_graceful=False)
        nodes.add_node(num_cpus=1)
        return True

    num_parts = 60
    placed: dict[str, Any] = {"kind": "transformers", "num_cpus": 0.6}  # so that no two share a node
    config = stream_run(tiny_model, words, num_parts, engine=placed, learner={"num_cpus": 0.6})
    faults = ["node of an engine", "node of the learner"]
    run = FaultyRun(config, tmp_path / "run", faults, gap_s=3, seed=0, hit=remove_node)
    run.to_the_end()
    print("\n" + run.table())
    run.check(num_parts)
    again = records_of(tmp_path / "run", "restart") + records_of(tmp_path / "run", "resumed")
    assert len(again) >= 2, "what was there, or the Run itself, was restarted each time"

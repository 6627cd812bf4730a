"""A cluster of several nodes, all of them on this machine."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import ray
from faults import FaultyRun
from ray.cluster_utils import Cluster
from runs import records_of, stream_run

from cluster.runtime import ray_session
from spag_ray.config import ClusterConfig


@pytest.fixture
def nodes() -> Iterator[Cluster]:
    """A head that runs nothing that asks for a CPU, and three nodes of one CPU each."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    for _ in range(3):
        cluster.add_node(num_cpus=1)
    with ray_session(ClusterConfig(address=cluster.address)):
        yield cluster
    cluster.shutdown()


def node_of(actor: str) -> str:
    handle = ray.get_actor(actor)
    node: str = ray.get(handle.__ray_call__.remote(lambda _: ray.get_runtime_context().get_node_id()))
    return node


@pytest.mark.slow  # four nodes
@pytest.mark.timeout(500)
def test_a_run_outlives_the_nodes_that_it_runs_on(
    nodes: Cluster, tiny_model: Path, words: Path, tmp_path: Path
) -> None:
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
    again = {line["what"].split("-")[0] for line in records_of(tmp_path / "run", "restart")}
    resumed = records_of(tmp_path / "run", "resumed")
    assert again >= {"engine", "learners"} or resumed, "the Run may have been on one of them"

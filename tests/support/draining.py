"""Nodes of a Ray cluster, all of them on this machine, and how one is announced to go away."""

import time
from collections.abc import Iterator
from contextlib import contextmanager

from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason

from cluster.runtime.ray_session import ray_session
from spag_ray.config.parts import ClusterConfig


@contextmanager
def nodes_of_one_cpu(count: int) -> Iterator[Cluster]:
    """A head that runs nothing that asks for a CPU, and nodes of one CPU each; this process is connected to it."""
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    with ray_session(ClusterConfig(address=cluster.address)):  # while there is no other node of this address
        for _ in range(count):
            cluster.add_node(num_cpus=1)
        yield cluster
    cluster.shutdown()


def drain(cluster: Cluster, node_id: str) -> None:
    """Announce that a node will be taken away, as a cloud does with a spot machine."""
    accepted, why = GcsClient(address=cluster.address).drain_node(
        node_id, DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"), "taken back", int(1000 * (time.time() + 600))
    )
    assert accepted, why

"""Nodes of a Ray cluster that are announced to go away."""

from __future__ import annotations

import time

from ray._raylet import GcsClient  # type: ignore[attr-defined]
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import DrainNodeReason


def drain(cluster: Cluster, node_id: str) -> None:
    """Announce that a node will be taken away, as a cloud does with a spot machine."""
    accepted, why = GcsClient(address=cluster.address).drain_node(
        node_id,
        DrainNodeReason.Value("DRAIN_NODE_REASON_PREEMPTION"),
        "taken back",
        int(1000 * (time.time() + 600)),
    )
    assert accepted, why

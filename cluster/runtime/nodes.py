"""Ray's view of its nodes."""

from __future__ import annotations

from collections import Counter
from typing import Any

import ray

from cluster.types import Node, NodeResources


def ray_nodes() -> list[Node]:
    """The nodes that are alive."""
    rows = [row for row in ray.nodes() if row["Alive"]]
    count = Counter(row["NodeManagerAddress"] for row in rows)
    nodes = []
    for row in rows:
        address, has = row["NodeManagerAddress"], row["Resources"]
        name = address if count[address] == 1 else f"{address}/{row['NodeID'][:6]}"
        resources = NodeResources(name, has.get("CPU", 0.0), has.get("GPU", 0.0))
        nodes.append(Node(row["NodeID"], address, resources, int(has.get("object_store_memory", 0))))
    return nodes


def draining_nodes() -> dict[str, float]:
    """{id of a node that Ray will take away: when, in seconds since the epoch, or 0}"""
    return {node: deadline_ms / 1000 for node, deadline_ms in ray._private.state.state.get_draining_nodes().items()}


def node_of(actor: Any) -> str:
    """The id of the node that an actor (its handle) is on; empty if it is on none."""
    row = ray._private.state.actors(actor._actor_id.hex())
    return str(row["Address"]["NodeID"]) if row else ""

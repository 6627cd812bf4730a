"""Ray's view of its nodes."""

from __future__ import annotations

from collections import Counter

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

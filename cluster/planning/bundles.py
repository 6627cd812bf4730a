"""The resources that a run needs, as bundles that each fit on one node, and a text that says which are not free.

>>> [bundle.num_cpus for bundle in bundles_of(RunConfig.model_validate({"learner": {"num_ranks": 3, "num_cpus": 0.5}}))]
[1, 1.0, 0.5]
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from cluster.planning.placement import SMALLEST, ActorSpec, Rooms, Unplaced, actors_of, match_actors
from cluster.types import NodeResources
from spag_ray.config.engine import EngineRange
from spag_ray.config.run import RunConfig

MAX_NODES_NAMED = 8


@dataclass(frozen=True)
class Bundle:
    """Resources on one node for actors of one kind."""

    kind: str
    num_cpus: float
    num_gpus: float

    def as_rays(self) -> dict[str, float]:
        return {name: value for name, value in (("CPU", self.num_cpus), ("GPU", self.num_gpus)) if value}


@dataclass(frozen=True)
class NodeUse:
    """A node's resources, and how much of them is free."""

    has: NodeResources
    free_cpus: float
    free_gpus: float


def bundles_of(config: RunConfig) -> list[Bundle]:
    """The bundles of a training run: one for each engine and one for each learner rank.

    The engine of the last match takes the place of learner ranks after they have ended. If it needs more than one rank
    has, the first bundle holds several ranks, or extra CPUs."""
    match = match_actors(config)
    bundles = []
    for spec in actors_of(config):
        if spec.kind == "learner":
            bundles += _learner_bundles(spec, match[0] if match else None)
        elif spec.kind == "engine":
            bundles += [Bundle("engine", spec.num_cpus, spec.num_gpus)] * spec.count
    return bundles


def num_that_fit(config: RunConfig, nodes: Sequence[NodeResources], most: int) -> int:
    """How many runs of this configuration have room on these nodes at the same time; at most `most`. Of engines whose
    number changes the largest counts, so that no run grows into another's room.

    >>> num_that_fit(RunConfig(), [NodeResources("10.0.0.1", 5, 0)], most=9)
    2
    """
    engine = config.engine
    if isinstance(engine.num_engines, EngineRange):
        engine = engine.model_copy(update={"num_engines": engine.num_engines.max})
    bundles = bundles_of(config.model_copy(update={"engine": engine}))
    specs = [ActorSpec(each.kind, "", 1, each.num_cpus, each.num_gpus) for each in bundles]
    rooms = Rooms(nodes)
    for count in range(most):
        if isinstance(rooms.place(specs), Unplaced):
            return count
    return most


def match_bundles(config: RunConfig) -> list[Bundle]:
    """The bundles of `spag-ray match`: engines for each seat, or for both where they play in turn."""
    num_pools = 1 if config.plays_in_turn else 2
    return engine_bundles(config, num_pools * config.engine.min_engines)


def engine_bundles(config: RunConfig, count: int) -> list[Bundle]:
    return [Bundle("engine", config.engine.num_cpus, config.engine.num_gpus)] * count


def _learner_bundles(rank: ActorSpec, match: ActorSpec | None) -> list[Bundle]:
    if match is None:
        return [Bundle("learner", rank.num_cpus, rank.num_gpus)] * rank.count
    together = 1
    if rank.num_gpus == int(rank.num_gpus):  # ranks with a share of a GPU must not share a GPU with each other
        needs = ((match.num_cpus, rank.num_cpus), (match.num_gpus, rank.num_gpus))
        together = min(rank.count, max([1, *(math.ceil(needed / each) for needed, each in needs if each)]))
    num_gpus = together * rank.num_gpus
    padded = match.num_cpus if num_gpus >= match.num_gpus else 0
    first = Bundle("learner", max(together * rank.num_cpus, padded), num_gpus)
    return [first, *[Bundle("learner", rank.num_cpus, rank.num_gpus)] * (rank.count - together)]


def missing_room(what: str, num_cpus: float, num_gpus: float, nodes: Sequence[NodeUse]) -> str:
    """What is needed, and how much of it each node has given out.

    >>> busy = NodeUse(NodeResources("10.0.0.1", 16, 8), 9, 1)
    >>> missing_room("engine-policy-1", 1, 2, [busy])
    '2 GPUs for engine-policy-1: the cluster has 8, 7 are taken (10.0.0.1 7/8)'
    """
    for unit, needed, key in (("GPU", num_gpus, "gpus"), ("CPU", num_cpus, "cpus")):
        uses = [(node.has.name, getattr(node.has, f"num_{key}"), getattr(node, f"free_{key}")) for node in nodes]
        total, num_free = sum(use[1] for use in uses), sum(use[2] for use in uses)
        if needed > num_free + SMALLEST:
            taken = total - num_free
            held = [f"{name} {_number(has - is_free)}/{_number(has)}" for name, has, is_free in uses if has]
            more = f", and {len(held) - MAX_NODES_NAMED} more" if len(held) > MAX_NODES_NAMED else ""
            return (
                f"{_number(needed)} {unit}{'' if needed == 1 else 's'} for {what}: the cluster has {_number(total)}, "
                f"{_number(taken)} {'is' if taken == 1 else 'are'} taken ({', '.join(held[:MAX_NODES_NAMED])}{more})"
            )
    wanted = " and ".join(
        f"{_number(needed)} {unit}s" for unit, needed in (("CPU", num_cpus), ("GPU", num_gpus)) if needed
    )
    return f"{wanted} for {what}: free in total, but not on single nodes as needed, or a node has just joined"


def _number(value: float) -> str:
    return f"{round(value, 2):g}"

"""The resources that a run needs, as bundles that each fit on one node, and a placement group for them: a run gets all
or none. Otherwise two runs could each hold half of what they need and wait for each other forever.

    reservation.reserve(bundles_of(config))                  waits until all bundles fit, and says what is missing
    reservation.take("engine-policy-0", "engine", 1, 0)      Ray options for a place in a bundle; {} if none is left
    reservation.leave("engine-policy-0")                     the actor has ended; its replacement takes the bundle

After the learners have ended, engines of the last match take their bundles. Ray places an engine that was not planned
outside the placement group.

>>> [bundle.num_cpus for bundle in bundles_of(RunConfig.model_validate({"learner": {"num_ranks": 3, "num_cpus": 0.5}}))]
[1, 1.0, 0.5]
"""

from __future__ import annotations

import contextlib
import math
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.util.placement_group import (
    PlacementGroup,
    get_placement_group,
    placement_group,
    placement_group_table,
    remove_placement_group,
)
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from cluster.handles import ActorHandle
from cluster.planning.placement import SMALLEST, ActorSpec, Rooms, Unplaced, actors_of, match_actors
from cluster.runtime.output_files import label_of
from cluster.runtime.ray_session import ClusterError, ray_nodes
from cluster.types import NodeResources
from spag_ray.config.engine import EngineRange
from spag_ray.config.parts import ClusterConfig
from spag_ray.config.run import RunConfig

LOOK_EVERY_S = 1.0
SAY_AFTER_S = 5.0  # a shorter time is the start of an actor, not a wait
SAY_EVERY_S = 10.0
SAY_AGAIN_EVERY_S = 120.0  # when nothing has changed
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


class NoRoomError(ClusterError):
    """The cluster has had no room for too long."""


class Reservation:
    """`name` is the name of the placement group. During a wait, `note` is called with what is missing, and `check` may
    end the wait by raising. Thread-safe. If nothing was reserved, Ray places every actor."""

    def __init__(
        self,
        config: ClusterConfig | None = None,
        name: str = "",
        note: Callable[[str], None] = lambda text: None,
        check: Callable[[], None] = lambda: None,
    ) -> None:
        self._config = config or ClusterConfig()
        self._name = name
        self._note = note
        self._check = check
        self._lock = threading.Lock()
        self._group: PlacementGroup | None = None
        self._bundles: list[Bundle] = []
        self._left: list[list[float]] = []  # [CPUs, GPUs] of each bundle
        self._taken: dict[str, tuple[int, float, float]] = {}
        self._learners_are_done = False

    def reserve(self, bundles: Sequence[Bundle]) -> None:
        """Waits until all bundles are placed. Raises NoRoomError after `cluster.placement_timeout_s`."""
        bundles = [bundle for bundle in bundles if bundle.as_rays()]
        if not bundles:
            return
        free(self._name)  # of a previous attempt
        strategy = self._config.strategy.upper()
        group = placement_group([bundle.as_rays() for bundle in bundles], strategy=strategy, name=self._name)
        counts = {kind: sum(bundle.kind == kind for bundle in bundles) for kind in ("engine", "learner")}
        what = "all engines and learners" if all(counts.values()) else f"all {bundles[0].kind}s"
        cpus, gpus = (sum(getattr(bundle, key) for bundle in bundles) for key in ("num_cpus", "num_gpus"))
        try:
            self._wait(what, cpus, gpus, group.wait)
        except BaseException:
            remove_placement_group(group)
            raise
        self._group, self._bundles = group, list(bundles)
        self._left = [[bundle.num_cpus, bundle.num_gpus] for bundle in bundles]

    def take(self, actor: str, kind: str, num_cpus: float, num_gpus: float) -> dict[str, Any]:
        """Ray options for an actor; empty if no bundle is left for it."""
        with self._lock:
            fitting = [
                index
                for index, (cpus, gpus) in enumerate(self._left)
                if (self._bundles[index].kind == kind or self._learners_are_done)
                and cpus >= num_cpus - SMALLEST
                and gpus >= num_gpus - SMALLEST
            ]
            if not fitting or not (num_cpus or num_gpus):
                return {}
            index = min(fitting, key=lambda index: (self._left[index][1], self._left[index][0]))
            self._left[index][0] -= num_cpus
            self._left[index][1] -= num_gpus
            self._taken[actor] = index, num_cpus, num_gpus
            return {"scheduling_strategy": PlacementGroupSchedulingStrategy(self._group, index)}

    def leave(self, actor: str) -> None:
        with self._lock:
            if (taken := self._taken.pop(actor, None)) is not None:
                index, num_cpus, num_gpus = taken
                self._left[index][0] += num_cpus
                self._left[index][1] += num_gpus

    def wait_for(
        self,
        actors: Sequence[str],
        handles: Sequence[ActorHandle],
        num_cpus: float,
        num_gpus: float,
        gives_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Waits until these actors, with these resources each, have room: their bundles are on nodes, or they have
        started outside the placement group. If a node is lost, Ray moves its bundles to other nodes. Raises as
        `reserve` does."""
        with self._lock:
            bundles = {self._taken[name][0] for name in actors if name in self._taken}
            elsewhere = [handle for name, handle in zip(actors, handles, strict=True) if name not in self._taken]
        if not (num_cpus or num_gpus):
            return  # they need no resources
        ready = [handle.__ray_ready__.remote() for handle in elsewhere]

        def is_there(seconds: float) -> bool:
            if gives_up():
                raise ClusterError("it is no longer waited for room")
            nodes = placement_group_table(self._group)["bundles_to_node_id"] if bundles else {}
            if not all(nodes[bundle] for bundle in bundles):
                time.sleep(seconds)
                return False
            return not ready or len(ray.wait(ready, num_returns=len(ready), timeout=seconds)[0]) == len(ready)

        self._wait(", ".join(actors), num_cpus * len(actors), num_gpus * len(actors), is_there)

    def learners_are_done(self) -> None:
        """From now on engines may take the learners' bundles."""
        self._learners_are_done = True

    def close(self) -> None:
        """Removes the placement group. Ray kills the actors that are still in it."""
        with self._lock:
            if self._group is not None:
                remove_placement_group(self._group)
                self._group, self._left, self._taken = None, [], {}

    def _wait(self, what: str, num_cpus: float, num_gpus: float, is_there: Callable[[float], bool]) -> None:
        began = time.monotonic()
        said, said_at = "", -math.inf
        while not is_there(LOOK_EVERY_S):
            self._check()
            now = time.monotonic()
            if now - began < min(SAY_AFTER_S, self._config.placement_timeout_s):
                continue
            missing = missing_room(what, num_cpus, num_gpus, node_uses())
            if now - began > self._config.placement_timeout_s:
                raise NoRoomError(
                    f"no room within cluster.placement_timeout_s ({self._config.placement_timeout_s:g} s) for "
                    f"{missing}; stop what uses them, ask for less, or raise the timeout"
                )
            if now - said_at > (SAY_EVERY_S if missing != said else SAY_AGAIN_EVERY_S):
                said, said_at = missing, now
                self._note(f"waiting for {missing}")


def node_uses() -> list[NodeUse]:
    """The nodes that are alive, with the resources that Ray reports as free now."""
    free_now = ray._private.state.available_resources_per_node()
    return [
        NodeUse(node.resources, *(free_now.get(node.node_id, {}).get(unit, 0.0) for unit in ("CPU", "GPU")))
        for node in ray_nodes()
    ]


def reservation_of(run_folder: Path) -> str:
    """The name of a run's placement group."""
    return f"places-{label_of(run_folder)}"


def free(name: str) -> None:
    """Removes the placement group of this name, which a previous attempt may have left. If a Run is killed, its
    placement group stays as long as its driver is alive."""
    with contextlib.suppress(ValueError):
        remove_placement_group(get_placement_group(name))

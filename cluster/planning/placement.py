"""Which actors a run places, and whether each finds its CPUs and GPUs on one node.

    actors_of(config)  -->  Rooms(nodes).place(actors)  -->  each actor's node and GPUs; or Unplaced

Actors are placed in the order in which a run starts them: engines, learners, then the engines of the league and of
frozen opponents. At the end of a run the learners end, and engines of an earlier model take their place for the last
match (`match_actors`). `placement_fault` says what is wrong with a placement: on all nodes together, on each node, on
each GPU.

    fault = placement_fault(config, [NodeResources("10.0.0.1", 16, 8)])      # None, or why the run would wait forever
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from cluster.types import NodeResources
from spag_ray.config.opponents import FrozenOpponent
from spag_ray.config.run import RunConfig
from spag_ray.stages import BASE, IMITATED

Kind = Literal["engine", "learner", "other"]
Order = Literal["pack", "spread"]
SMALLEST = 1e-4  # Ray counts in ten-thousandths
MOST_OF_A_GPU = 0.96  # of its memory; the rest is for the CUDA contexts of the processes


@dataclass(frozen=True)
class ActorSpec:
    """`count` actors of one class. The `num_gpus` of an actor have to be on one node; below 1 it is a share of one
    GPU."""

    name: str
    class_name: str
    count: int
    num_cpus: float = 0.0
    num_gpus: float = 0.0
    kind: Kind = "other"


@dataclass(frozen=True)
class PlacedActor:
    """`gpus`: indices of the GPUs on its node."""

    name: str
    spec: ActorSpec
    node: str
    gpus: tuple[int, ...]


@dataclass(frozen=True)
class Unplaced:
    """The first actor that does not fit. `index` counts from 0, so `index` actors of `spec` were placed."""

    spec: ActorSpec
    index: int


@dataclass
class _Room:
    """The free resources of a node."""

    node: NodeResources
    cpus: float
    gpus: list[float] = field(default_factory=list)

    def holds(self, spec: ActorSpec) -> bool:
        if spec.num_cpus > self.cpus + SMALLEST:
            return False
        if spec.num_gpus < 1:
            return not spec.num_gpus or max(self.gpus, default=0.0) >= spec.num_gpus - SMALLEST
        return sum(free > 1 - SMALLEST for free in self.gpus) >= spec.num_gpus

    def take(self, spec: ActorSpec) -> tuple[int, ...]:
        """Takes whole GPUs, or a share of the fullest GPU that has enough, as Ray does."""
        self.cpus -= spec.num_cpus
        share = min(spec.num_gpus, 1.0)
        fitting = [gpu for gpu, free in enumerate(self.gpus) if free >= share - SMALLEST]
        chosen = sorted(fitting, key=lambda gpu: self.gpus[gpu])[: math.ceil(spec.num_gpus)]
        for gpu in chosen:
            self.gpus[gpu] -= share
        return tuple(chosen)


class Rooms:
    """The free resources of the nodes. `pack` chooses the fullest node that has room, `spread` the emptiest. Ray's
    choice is between the two."""

    def __init__(self, nodes: Sequence[NodeResources], order: Order = "pack") -> None:
        self._rooms = {node.name: _Room(node, node.num_cpus, [1.0] * int(node.num_gpus)) for node in nodes}
        self._choose = min if order == "pack" else max

    def place(self, actors: Iterable[ActorSpec]) -> list[PlacedActor] | Unplaced:
        """Each actor on a node, or the first actor that does not fit."""
        placed = []
        for spec in actors:
            for index in range(spec.count):
                fitting = [room for room in self._rooms.values() if room.holds(spec)]
                if not fitting:
                    return Unplaced(spec, index)
                room = self._choose(fitting, key=lambda room: (sum(room.gpus), room.cpus))
                placed.append(PlacedActor(f"{spec.name}-{index}", spec, room.node.name, room.take(spec)))
        return placed

    def leave(self, actor: PlacedActor) -> None:
        """The actor has ended."""
        room = self._rooms[actor.node]
        room.cpus += actor.spec.num_cpus
        for gpu in actor.gpus:
            room.gpus[gpu] += min(actor.spec.num_gpus, 1.0)


def actors_of(config: RunConfig) -> list[ActorSpec]:
    """All engines and learner ranks, in the order in which they are started."""
    policies, league, engines = config.policy_names, config.league, functools.partial(_engines, config)
    actors = [
        ActorSpec("run", "Run", 1),
        ActorSpec("buffer", "ReplayBuffer", 1),
        ActorSpec("arena", "ArenaActor", config.self_play.num_arenas),
    ]
    actors += [engines(f"engine-{name}", config.engine.min_engines) for name in policies]
    for name in policies:
        label = "learner" if name == "policy" else f"learner-{name}"
        ranks, cpus, gpus = config.learner.num_ranks, config.learner.num_cpus, config.learner.num_gpus
        actors.append(ActorSpec(label, "LearnerActor", ranks, num_cpus=cpus, num_gpus=gpus, kind="learner"))
    if league.past_share:
        actors += [engines(f"engine-{name}-past", league.num_engines) for name in policies]
    if models := sum(fixed.has_engine for fixed in league.fixed):
        actors.append(engines("engine-fixed", models))
    frozen = () if config.plays_in_turn else config.evaluation.against
    for opponent in filter(functools.partial(num_later_stages, config), frozen):
        actors += [engines(f"engine-{opponent}-{name}", 1) for name in policies]
    if has_listener(config) and config.listener not in frozen:
        actors.append(engines("engine-listener", 1))
    return actors


def _engines(config: RunConfig, name: str, count: int) -> ActorSpec:
    engine = config.engine
    return ActorSpec(name, "EngineActor", count, num_cpus=engine.num_cpus, num_gpus=engine.num_gpus, kind="engine")


def has_listener(config: RunConfig) -> bool:
    """Whether an engine listens to games of self-play (objective.information_gain)."""
    return config.objective.information_gain != 0 and config.self_play.rounds > 0


def num_later_stages(config: RunConfig, opponent: FrozenOpponent) -> int:
    """The number of stages that play against this opponent."""
    return config.self_play.rounds + int(opponent == "base" and config.imitation.enabled)


def has_last_match(config: RunConfig) -> bool:
    """Whether the run ends with a match of its own: the newest model against the one that self-play started from.
    There is none where that is one of evaluation.against, because it has been played then."""
    if not (config.self_play.rounds and config.evaluation.games):
        return False
    return str(IMITATED if config.imitation.enabled else BASE) not in config.evaluation.against


def base_plays_in_turn(config: RunConfig) -> bool:
    """Whether engines of the run take the base model's weights in turn with those of later stages."""
    is_met = "base" in config.evaluation.against and num_later_stages(config, "base") > 0
    return config.plays_in_turn and (is_met or (has_last_match(config) and not config.imitation.enabled))


def num_on_one_gpu(share: float) -> int:
    """How many engines that reserve this share of a GPU Ray puts on one: as many as fit, before it takes another."""
    return math.floor(1 / share + SMALLEST) if 0 < share < 1 else 1


def with_room_for_engines(config: RunConfig, count: int) -> RunConfig:
    """For so many engines at once and no learner: where Ray puts several on one GPU, and its memory has no room for
    them, each takes an equal part of engine.gpu_memory_utilization."""
    engine = config.engine
    sharing = min(count, num_on_one_gpu(engine.num_gpus))
    if sharing * engine.gpu_memory_utilization <= MOST_OF_A_GPU:
        return config
    divided = {"gpu_memory_utilization": engine.gpu_memory_utilization / sharing}
    return config.model_copy(update={"engine": engine.model_copy(update=divided)})


def match_actors(config: RunConfig) -> list[ActorSpec]:
    """The engines that are placed after the learners have ended, for the last match."""
    if not has_last_match(config) or config.plays_in_turn:
        return []
    anchor = IMITATED if config.imitation.enabled else BASE
    names = config.policy_names
    if has_listener(config) and config.listener == str(anchor):
        names = names[:-1]  # the listener's engine, of the policy that guesses, plays it
    return [_engines(config, f"engine-{anchor}-{name}", 1) for name in names]


def totals(actors: Sequence[ActorSpec]) -> tuple[float, float]:
    """(CPUs, GPUs) of all."""
    return sum(spec.count * spec.num_cpus for spec in actors), sum(spec.count * spec.num_gpus for spec in actors)


def placement_fault(config: RunConfig, nodes: Sequence[NodeResources]) -> str | None:
    """Why a run on these nodes would wait forever or use its GPUs wrongly, and what to change; None if it fits."""
    actors = actors_of(config)
    return (
        shape_fault(config)
        or _totals_fault(config, actors, nodes)
        or _unplaced_fault(config, actors, nodes)
        or _sharing_fault(config, Rooms(nodes))
    )


def placement_doubt(config: RunConfig, nodes: Sequence[NodeResources]) -> str | None:
    """What may go wrong although a working placement exists; None if nothing."""
    unplaced = Rooms(nodes, "spread").place(actors_of(config))
    if isinstance(unplaced, Unplaced):
        return (
            f"there is room for {unplaced.spec.name}-{unplaced.index} ({_wants(unplaced.spec)} on one node) only if "
            "Ray fills nodes one by one; if the run waits for it, use fewer GPUs for each, or more nodes"
        )
    if config.engine.num_gpus > max(1, config.engine.tensor_parallel_size):
        return (
            f"engine.num_gpus {config.engine.num_gpus:g} is more than engine.tensor_parallel_size "
            f"{config.engine.tensor_parallel_size}: the other GPUs stay idle"
        )
    if config.learner.num_gpus > 1:
        return f"learner.num_gpus is {config.learner.num_gpus:g}, but a rank uses one GPU: the other GPUs stay idle"
    return None


def shape_fault(config: RunConfig) -> str | None:
    """What is wrong on whatever nodes."""
    engine, learner = config.engine, config.learner
    for key, value in (("engine.num_gpus", engine.num_gpus), ("learner.num_gpus", learner.num_gpus)):
        if value > 1 and value != int(value):
            return f"{key} is {value:g}, but above 1 Ray gives whole GPUs only; set it to {int(value) + 1}"
    if 0 < math.ceil(engine.num_gpus) < engine.tensor_parallel_size:
        return (
            f"an engine of engine.tensor_parallel_size {engine.tensor_parallel_size} needs as many GPUs, "
            f"but engine.num_gpus is {engine.num_gpus:g}; set it to {engine.tensor_parallel_size}"
        )
    return None


def _totals_fault(config: RunConfig, actors: Sequence[ActorSpec], nodes: Sequence[NodeResources]) -> str | None:
    policies = len(config.policy_names)
    num_extra = sum(spec.count for spec in actors if spec.kind == "engine") - policies * config.engine.min_engines
    available = sum(node.num_cpus for node in nodes), sum(node.num_gpus for node in nodes)
    for resource, needed, there in zip(("CPU", "GPU"), totals(actors), available, strict=True):
        if needed > there + SMALLEST:
            key = f"num_{resource.lower()}s"
            engine, rank = getattr(config.engine, key), getattr(config.learner, key)
            league = f", {num_extra} more for other opponents," if num_extra else ""
            return (
                f"{needed:g} {resource}s are needed ({policies} x {config.engine.min_engines} engines of engine.{key} "
                f"{engine:g}{league} and {config.learner.num_ranks} learner ranks of learner.{key} {rank:g}), Ray has "
                f"{there:g}; ask for fewer, or share them: both keys may be below 1"
            )
    return None


def _unplaced_fault(config: RunConfig, actors: Sequence[ActorSpec], nodes: Sequence[NodeResources]) -> str | None:
    unplaced = Rooms(nodes).place(actors)
    if not isinstance(unplaced, Unplaced):
        return None
    spec = unplaced.spec
    largest = max(nodes, key=lambda node: (node.num_gpus, node.num_cpus) if spec.num_gpus else (node.num_cpus, 0))
    part = "engine" if spec.kind == "engine" else "learner"
    split = " and engine.tensor_parallel_size" if spec.num_gpus > 1 else ""
    return (
        f"only {unplaced.index} of {spec.count} {spec.name} fit: each needs {_wants(spec)} on one node. The largest "
        f"node has {largest.num_cpus:g} CPUs and {largest.num_gpus:g} GPUs, shared with actors placed before; lower "
        f"{part}.num_cpus, {part}.num_gpus{split}, or their number"
    )


def _sharing_fault(config: RunConfig, rooms: Rooms) -> str | None:
    """Engines on one GPU that together need more memory than it has, during the run or in the last match, because vLLM
    takes its share of the whole GPU; or ranks of one learner group on one GPU."""
    placed = rooms.place(actors_of(config))
    assert not isinstance(placed, Unplaced)
    if crowded := _crowded(config, placed):
        return f"Ray would put {crowded}; or set engine.num_gpus above 0.5, so that no two engines share a GPU"
    if together := next((names for names in _by_gpu(placed, "learner") if len(names) > 1), None):
        return (
            f"Ray would put {' and '.join(together)} on one GPU, but NCCL allows one rank per GPU; set "
            "engine.num_gpus or learner.num_gpus above 0.5"
        )
    staying = [actor for actor in placed if actor.spec.kind != "learner"]
    for actor in placed:
        if actor.spec.kind == "learner":
            rooms.leave(actor)
    without_it = "evaluation.games: 0" if config.why_no_turns else "evaluation.engines: in_turn"
    coming = rooms.place(match_actors(config))
    if isinstance(coming, Unplaced):
        return (
            f"the match at the end of the run has no room: {coming.spec.name} needs {_wants(coming.spec)}, but the "
            f"learners free {config.learner.num_ranks} x {config.learner.num_cpus:g} CPUs and "
            f"{config.learner.num_gpus:g} GPUs; give a learner rank as much as an engine, or set {without_it}"
        )
    if crowded := _crowded(config, [*staying, *coming]):
        return f"the match at the end of the run puts {crowded}; or set {without_it}"
    return None


def _by_gpu(placed: Sequence[PlacedActor], kind: Kind) -> Iterable[list[str]]:
    """The names of the engines that Ray puts on each GPU, or of the ranks of each learner group."""
    on_gpu: dict[tuple[str, str, int], list[str]] = {}
    for actor in placed:
        if actor.spec.kind == kind:
            for gpu in actor.gpus:
                group = actor.spec.name if kind == "learner" else ""
                on_gpu.setdefault((group, actor.node, gpu), []).append(actor.name)
    return on_gpu.values()


def _crowded(config: RunConfig, placed: Sequence[PlacedActor]) -> str | None:
    """Engines that Ray puts on one GPU although their shares of its memory add up to more than it has."""
    share = config.engine.gpu_memory_utilization
    names = max(_by_gpu(placed, "engine"), key=len, default=[])
    if config.engine.kind != "vllm" or len(names) < 2 or len(names) * share <= MOST_OF_A_GPU:
        return None
    return (
        f"{' and '.join(names)} on one GPU, but each takes engine.gpu_memory_utilization {share:g} of its memory; "
        f"set it to at most {math.floor(100 * MOST_OF_A_GPU / len(names)) / 100:g}"
    )


def _wants(spec: ActorSpec) -> str:
    gpus = f" and {spec.num_gpus:g} GPUs" if spec.num_gpus else ""
    return f"{spec.num_cpus:g} CPUs{gpus}"

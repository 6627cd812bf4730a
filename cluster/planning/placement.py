"""Which actors a run places, and whether each finds its CPUs and GPUs on one node.

    actors_of(config)  -->  Rooms(nodes).place(actors)  -->  each actor's node and GPUs; or Unplaced

Actors are placed in the order in which a run starts them: engines, learners, then the engines of the league and of
frozen opponents. At the end of a run the learners end, and engines of an earlier model take their place for the last
match (`match_actors`). placement_faults.py describes in words what is wrong with a placement.
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

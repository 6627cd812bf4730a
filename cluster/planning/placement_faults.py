"""What is wrong with a run's placement, as text: on all nodes together, on each node, on each GPU.

fault = placement_fault(config, [NodeResources("10.0.0.1", 16, 8)])      # None, or why the run would wait forever
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from cluster.planning.placement import (
    MOST_OF_A_GPU,
    SMALLEST,
    ActorSpec,
    Kind,
    PlacedActor,
    Rooms,
    Unplaced,
    actors_of,
    match_actors,
    totals,
)
from cluster.types import NodeResources
from spag_ray.config.run import RunConfig


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

"""What a run will place, do and need, computed from its configuration, and told as text: `train --dry-run`. It starts
nothing and imports no slow library.

    plan = make_plan(load_config("llama2_7b_8gpu"))
    print("\\n".join(plan_lines(plan)))
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from cluster.planning.memory import (
    GIB,
    WELL_FILLED,
    EngineMemory,
    Memory,
    Part,
    bytes_of,
    checkpoint_bytes,
    engine_memory,
    learner_memory,
    num_trained,
    share_of_gpu,
    with_planned_learner,
)
from cluster.planning.model_size import ModelSize, kv_heads, model_size
from cluster.planning.placement import ActorSpec, actors_of, has_last_match, match_actors, num_later_stages, totals
from cluster.planning.plan_checks import check_plan
from learners.deepspeed_config import deepspeed_config, is_offloaded
from spag_ray.channels.base import AUTO, CHANNELS
from spag_ray.config.no_effect import few_imitation_steps, values_without_effect
from spag_ray.config.parts import ModelShape
from spag_ray.config.run import RunConfig
from spag_ray.results.game_names import payoffs_line


@dataclass(frozen=True)
class Schedule:
    """What is played and trained on. Numbers of games are exact. Numbers of steps are upper bounds, because undecided
    games are not trained on. `imitation_steps` is None if it depends on the rows of a file. `permits` is None without a
    stream."""

    imitation_games: int | None
    imitation_steps: int | None
    games: int
    versions: int
    steps: int
    evaluation_games: int
    permits: int | None


@dataclass(frozen=True)
class Plan:
    """`size`, and everything that is computed from it, is None if the model's size is unknown. `past_engine`: one whose
    opponents are adapters, None if there is none. `config`: with numbers in place of each `auto`, which `chosen` tells,
    None if there was no `auto`. `disk`: the largest size of a run folder, empty if the model's size is unknown."""

    config: RunConfig
    actors: tuple[ActorSpec, ...]
    match: tuple[ActorSpec, ...]
    schedule: Schedule
    size: ModelSize | None
    learner: Memory | None
    engine: EngineMemory | None
    past_engine: EngineMemory | None
    disk: tuple[Part, ...]
    store_bytes: int
    chosen: str | None

    @property
    def sequences(self) -> int | None:
        """How many sequences of full length an engine's KV cache holds; None if unknown."""
        if self.engine is None or self.engine.kv_tokens is None:
            return None
        return self.engine.kv_tokens // self.config.engine.max_model_len


def make_plan(config: RunConfig) -> Plan:
    """Raises ModelError for a model folder whose config.json or headers cannot be read."""
    size = model_size(config.model, config.model_shape)
    planned, chosen = with_planned_learner(config, size), None
    if planned is not config:
        tokens, on = planned.learner.microbatch_tokens, planned.learner.checkpoints_gradients
        chosen = f"micro-batches of {tokens} tokens, gradient checkpointing {'on' if on else 'off'} (auto)"
    config = planned
    holds_past = config.sends_adapters and bool(config.league.num_past)
    return Plan(
        config,
        tuple(actors_of(config)),
        tuple(match_actors(config)),
        make_schedule(config),
        size,
        learner=learner_memory(config, size) if size else None,
        engine=engine_memory(config, size) if size else None,
        past_engine=engine_memory(config, size, holds_past=True) if size and holds_past else None,
        disk=make_disk(config, size) if size else (),
        store_bytes=snapshot_bytes(config, size) if size else 0,
        chosen=chosen,
    )


def snapshot_bytes(config: RunConfig, size: ModelSize) -> int:
    """Bytes of a published version in the object store of the learner's node and of each node with engines."""
    return 0 if CHANNELS[config.channel].is_direct else version_bytes(config, size)


def version_bytes(config: RunConfig, size: ModelSize) -> int:
    """Bytes of one published version."""
    sent = num_trained(config, size) if config.sends_adapters else size.num_parameters
    return len(config.policy_names) * sent * bytes_of(config.learner.dtype)


def make_schedule(config: RunConfig) -> Schedule:
    self_play, imitation = config.self_play, config.imitation
    scripted = imitation.enabled and imitation.source == "scripted"
    imitation_games = imitation.games if scripted else (None if imitation.enabled else 0)
    has_rows = imitation.enabled and imitation.sft_file is not None
    imitation_steps = None if imitation_games is None or has_rows else -(-imitation_games // imitation.batch_games)
    games = self_play.rounds * self_play.games_per_round
    most = self_play.games_per_round + self_play.refill_agreeing * config.words.games_per_word
    versions, steps = self_play.rounds, self_play.rounds * -(-most // self_play.batch_games)
    permits = None
    if config.schedule == "stream":
        stream = config.stream
        versions = games // stream.games_per_version
        steps = versions * config.steps_per_version
        games, permits = versions * stream.fresh_games, (stream.max_lag + 1) * stream.fresh_games
    num_later = int(imitation.enabled) + self_play.rounds + 2 * has_last_match(config)
    of_base = config.evaluation.base_games or config.evaluation.games
    of_itself = of_base * bool(config.evaluation.games) + num_later * config.evaluation.games
    num_matches = sum(2 * num_later_stages(config, opponent) for opponent in config.evaluation.against)
    return Schedule(
        imitation_games=imitation_games,
        imitation_steps=imitation_steps,
        games=games,
        versions=versions + int(imitation.enabled),
        steps=steps,
        evaluation_games=len(config.games) * (of_itself + num_matches * config.evaluation.num_against_games),
        permits=permits,
    )


def make_disk(config: RunConfig, size: ModelSize) -> tuple[Part, ...]:
    """Checkpoints (those that are kept and one being written), models, the league."""
    policies = len(config.policy_names)
    times = f"{policies} policies x " if policies > 1 else ""
    model = policies * size.num_parameters * bytes_of(config.learner.dtype)
    parts = []
    if config.checkpoint.enabled:
        one, arithmetic = checkpoint_bytes(config, size)
        kept = config.checkpoint.keep_last
        if (max_gib := config.checkpoint.max_gib) is not None:  # the newest one stays, however large
            kept = min(kept, max(1, int(max_gib * GIB) // (policies * one)))
        told = f"{times}({kept} kept + 1 being written) x ({arithmetic})"
        parts.append(Part("checkpoints", policies * one * (kept + 1), told))
    stages = int(config.imitation.enabled) + config.self_play.rounds
    parts.append(Part("models", stages * model, f"{stages} stages x {times}{model / policies / GIB:.1f} GiB"))
    if config.league.past_share:
        kept = config.league.max_snapshots
        one = version_bytes(config, size)
        parts.append(Part("league", kept * one, f"{kept} versions x {times}{one / policies / GIB:.2g} GiB"))
    return tuple(parts)


def plan_faults(plan: Plan) -> list[str]:
    """Faults that would stop a run after its start, and what to change."""
    config, faults = plan.config, []
    if plan.sequences == 0:
        faults.append(
            f"an engine's KV cache does not hold one sequence of engine.max_model_len {config.engine.max_model_len}: "
            "give it more memory, or a larger engine.tensor_parallel_size"
        )
    shape, gpus = plan.size.shape if plan.size else None, config.engine.tensor_parallel_size
    if shape is not None and (whole := _not_split(shape, gpus)):
        faults.append(f"{whole} cannot be split over engine.tensor_parallel_size {gpus}; set a divisor of that number")
    most = config.checkpoint.max_gib if config.checkpoint.enabled else None
    one = checkpoint_bytes(config, plan.size)[0] if plan.size else 0
    if most is not None and len(config.policy_names) * one > most * GIB:
        faults.append(f"a checkpoint is larger than checkpoint.max_gib {most:g}, which stops a run; raise it")
    return faults


def _not_split(shape: ModelShape, gpus: int) -> str | None:
    """What of a model vLLM cannot divide over so many GPUs."""
    if shape.num_attention_heads % gpus:
        return f"{shape.num_attention_heads} attention heads"
    heads = kv_heads(shape)
    if max(heads, gpus) % min(heads, gpus):  # fewer than GPUs are copied
        return f"{heads} key and value heads"
    if shape.intermediate_size % gpus:
        return f"an intermediate size of {shape.intermediate_size}"
    return None


def plan_notes(plan: Plan) -> list[str]:
    """Warnings of what would not stop a run."""
    config, notes = plan.config, list[str]()
    if plan.size is None:
        return [
            f"the size of {config.model} is unknown, so memory is not estimated: set model_shape (as in its "
            "config.json), or run this command where the model folder is"
        ]
    assert plan.learner is not None
    share = share_of_gpu(config)
    if config.learner.num_gpus and plan.learner.num_bytes > WELL_FILLED * share * config.cluster.gpu_gib * GIB:
        told = f"{config.cluster.gpu_gib:g}" if share == 1 else f"{config.cluster.gpu_gib:g}, of which it has {share:g}"
        notes.append(
            f"a learner rank is estimated at {plan.learner.num_bytes / GIB:.1f} GiB of its GPU's {told}: "
            "use more ranks with a higher learner.zero_stage, "
            "learner.gradient_checkpointing: true, a smaller learner.max_tokens_per_microbatch, or "
            "learner.deepspeed: zero3_offload"
        )
    engine = config.engine
    share_awake = config.placement == "separate" and config.may_share_gpus
    if share_awake and engine.gpu_memory_utilization > engine.num_gpus:
        notes.append(
            f"engine.gpu_memory_utilization {engine.gpu_memory_utilization:g} is above engine.num_gpus "
            f"{engine.num_gpus:g}: more than its part of a GPU that it may share with a learner; lower it"
        )
    zero = deepspeed_config(config.learner, config.learner.num_gpus > 0)["zero_optimization"]
    if zero["stage"] == 3 and config.learner.num_ranks == 1 and not is_offloaded(zero, "offload_param"):
        notes.append(
            "ZeRO-3 divides a model over ranks, and learner.num_ranks is 1: it saves no memory, and a step takes "
            "several times as long (on one H200 1.16 s, 0.33 s with ZeRO-1); set learner.zero_stage: 1"
        )
    if plan.sequences and plan.sequences < config.engine.max_num_seqs / 4:
        notes.append(
            f"an engine's KV cache holds {plan.sequences} sequences of full length, but engine.max_num_seqs is "
            f"{config.engine.max_num_seqs}: in long games vLLM has to preempt and recompute sequences"
        )
    return notes


def print_plan(config: RunConfig) -> bool:
    """`train --dry-run`; returns whether such a run could start. Raises SpagError for one that has no plan."""
    unread = check_plan(config)
    for warning in (*values_without_effect(config), few_imitation_steps(config)):
        if warning is not None:
            print(f"warning: {warning}")
    plan = make_plan(config)
    if plan.chosen is not None:  # a game has to fit what `auto` has become, too
        check_plan(plan.config)
    for line in plan_lines(plan):
        print(line)
    print(f"A plan checks no files; `spag-ray doctor` does. Not checked: {'; '.join(unread)}.")
    return not plan_faults(plan)


def plan_lines(plan: Plan) -> list[str]:
    """What `train --dry-run` prints."""
    lines = [*_model(plan), "", *_actors(plan), "", *_schedule(plan)]
    if plan.size is not None:
        lines += ["", *_memory(plan), "", *_disk(plan)]
    said = [f"cannot start: {fault}" for fault in plan_faults(plan)]
    said += [f"note: {note}" for note in plan_notes(plan)]
    wrapped = (textwrap.wrap(note, 98, subsequent_indent="      ") for note in said)
    return lines + [line for note in wrapped for line in ("", *note)]


def _model(plan: Plan) -> Iterator[str]:
    yield f"plan of {plan.config.name}: nothing is started; sizes are estimates"
    yield ""
    if plan.size is None:
        yield f"model     {plan.config.model}"
    else:
        dtype = plan.config.learner.dtype
        num_gib = plan.size.num_parameters * bytes_of(dtype) / GIB
        yield f"model     {plan.config.model}: {plan.size.num_parameters:,} parameters, {num_gib:.2f} GiB in {dtype}"
        yield f"          counted by {plan.size.source}"
    for seat, model in plan.config.seat_models.items():
        yield f"          weights of the {seat}: {model}"


def _actors(plan: Plan) -> Iterator[str]:
    yield f"{'actors':<28}{'class':<16}{'count':>6}{'CPUs each':>12}{'GPUs each':>12}"
    for spec in plan.actors:
        yield _actor(spec)
    count = sum(spec.count for spec in plan.actors)
    num_cpus, num_gpus = totals(plan.actors)
    yield f"{'  total':<44}{count:>6}{num_cpus:>12g}{num_gpus:>12g}"
    if plan.match:
        yield "  at the end, in place of the learners, for matches against an earlier model:"
        for spec in plan.match:
            yield _actor(spec)


def _actor(spec: ActorSpec) -> str:
    return f"  {spec.name:<26}{spec.class_name:<16}{spec.count:>6}{spec.num_cpus:>12g}{spec.num_gpus:>12g}"


def _schedule(plan: Plan) -> Iterator[str]:
    config, schedule, rounds = plan.config, plan.schedule, plan.config.self_play.rounds
    yield f"schedule  {config.schedule}, placement {config.placement}, policies {config.policies}"
    if config.imitation.enabled:
        scripted = schedule.imitation_games is not None
        games = f"{schedule.imitation_games} scripted games" if scripted else f"the games of {config.imitation.source}"
        if config.imitation.sft_file is not None:
            games += f" and the rows of {config.imitation.sft_file}"
        steps = "" if schedule.imitation_steps is None else f", {schedule.imitation_steps} learner steps"
        yield f"  imitation   {games}, {config.imitation.batch_games} a step{steps}"
    yield (
        f"  self-play   {rounds} rounds, {schedule.games:,} games, at most {schedule.steps:,} learner steps "
        f"of {config.self_play.batch_games} games"
    )
    for line in filter(None, map(payoffs_line, config.each_game)):
        first, *more = textwrap.wrap(line, 86)
        yield f"  payoffs     {first}"
        yield from (f"{'':<14}{each}" for each in more)
    yield f"  versions    {schedule.versions} published, over sync.channel {_channel(config)}"
    if schedule.permits is not None:
        flying = config.self_play.games_in_flight * config.self_play.num_arenas
        yield f"  permits     {schedule.permits} games (max_lag {config.stream.max_lag}), {flying} in flight at once"
    yield f"  evaluation  {schedule.evaluation_games} games on held-out words, the last match included"
    if config.plays_in_turn and (config.evaluation.against or has_last_match(config)):
        yield "              earlier stages play on the run's engines, which take both players' weights in turn"
    if config.evaluation.tasks:
        when = f"each of {1 + int(config.imitation.enabled) + rounds} stages"
        if config.evaluation.task_stages == "ends":
            first = "imitation" if config.imitation.enabled else "the start"
            when = f"{first} and the last round" if rounds else first
        yield f"  tasks       after {when}: {', '.join(config.evaluation.tasks)}"


def _channel(config: RunConfig) -> str:
    chosen = " (auto)" if config.sync.channel == AUTO else ""
    fallback = "; by the object store if that breaks" if CHANNELS[config.channel].is_direct else ""
    return f"{config.channel}{chosen}{fallback}"


def _memory(plan: Plan) -> Iterator[str]:
    config = plan.config
    assert plan.learner is not None
    assert plan.engine is not None
    room = f" of {config.cluster.gpu_gib:g}"
    on_gpu = config.learner.num_gpus > 0
    yield f"memory of a learner rank   {plan.learner.num_bytes / GIB:.1f} GiB{room + ' on its GPU' if on_gpu else ''}"
    if plan.chosen is not None:
        yield f"    {plan.chosen}"
    yield from _parts(plan.learner.parts)
    if plan.learner.host_parts:
        yield f"  and on the host, not all at the same time: {plan.learner.host_bytes / GIB:.1f} GiB"
        yield from _parts(plan.learner.host_parts)
    on_gpu = config.engine.num_gpus > 0
    each = f"{room} on each of its GPUs" if on_gpu else ""
    yield f"memory of an engine        {plan.engine.budget / GIB:.1f} GiB{each}"
    yield from _parts(plan.engine.memory.parts)
    sequences = plan.sequences
    if sequences is not None:
        yield (
            f"    it holds {plan.engine.kv_tokens:,} tokens: {sequences} sequences of {config.engine.max_model_len} "
            f"(engine.max_num_seqs {config.engine.max_num_seqs})"
        )
    yield from _parts(plan.engine.memory.host_parts)
    if (past := plan.past_engine) is not None:
        num_past = config.league.num_past
        yield f"memory of a past engine    {past.budget / GIB:.1f} GiB{each}, with {num_past} opponents as adapters"
        yield from _parts(past.memory.parts)
    if plan.store_bytes:
        num_gib = plan.store_bytes / GIB
        yield f"object store               {num_gib:.2f} GiB for a version, on every node of a learner or engine"
    yield "The libraries' own memory, 1 to 2 GiB per process, is not included."


def _disk(plan: Plan) -> Iterator[str]:
    num_gib = sum(part.num_bytes for part in plan.disk) / GIB
    yield f"disk      {num_gib:.1f} GiB in the run folder, plus its logs of games"
    yield from _parts(plan.disk)


def _parts(parts: Sequence[Part]) -> Iterator[str]:
    for part in parts:
        first, *more = textwrap.wrap(part.arithmetic, 57)
        yield f"    {part.name:<28}{part.num_bytes / GIB:>8.2f}  {first}"
        for line in more:
            yield f"{'':<42}{line}"

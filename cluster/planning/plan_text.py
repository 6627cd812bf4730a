"""A plan as lines of text, at most 100 columns."""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

from cluster.planning.memory import GIB, Part, bytes_of
from cluster.planning.placement import ActorSpec, has_last_match, totals
from cluster.planning.plan import Plan, make_plan, plan_faults, plan_notes
from cluster.planning.plan_checks import check_plan
from spag_ray.channels.base import AUTO, CHANNELS
from spag_ray.config.no_effect import few_imitation_steps, values_without_effect
from spag_ray.config.run import RunConfig
from spag_ray.results.payoffs_told import payoffs_line


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

"""The top of the page: what ran, on what hardware, for how long, and what is missing."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from markupsafe import Markup

from spag_ray.config.engine import EngineConfig, EngineRange
from spag_ray.config.parts import LearnerConfig
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Role
from spag_ray.results.game_names import GameNames, cooperative_note, told_apart
from spag_ray.results.report import markup
from spag_ray.results.report.files import RunFiles
from spag_ray.results.report.markup import duration, in_words, joined, paragraph
from spag_ray.results.report.measurements import Measurements
from spag_ray.results.report.packing import Packer
from spag_ray.results.report.transcripts import Transcripts
from spag_ray.results.standings import MIN_WORDS, score
from spag_ray.stages import EXPERT, IMITATED, STREAM, Stage

_ENGINES = {"vllm": "vLLM", "transformers": "transformers"}


@dataclass(frozen=True)
class Gathered:
    """Everything that was read of a run. `made_at`: when the page is made, in seconds since the epoch."""

    files: RunFiles
    measured: Measurements
    transcripts: Transcripts
    packer: Packer
    made_at: float

    def num_games(self, stage: Stage) -> int:
        """How many games of a stage were played."""
        found = self.transcripts.counts.get(str(stage))
        return 0 if found is None else found.num_games

    @property
    def each_game(self) -> dict[str, Gathered]:
        """What was read of each game."""
        return {
            name: replace(self, files=self.files.of_game(name), transcripts=self.transcripts.of_game(name))
            for name in self.files.games
        }


def headline(run: Gathered) -> Markup:
    config = run.files.config
    text = [paragraph(_state(run), "state")]
    if config is not None:
        game = run.files.game
        text += [paragraph(_what(run, config), "lede"), paragraph(_where(config, game), "where")]
        text += [paragraph(note, "where") for note in map(cooperative_note, config.each_game) if note]
    return joined([*text, markup.numbers(_numbers(run))])


def notices(run: Gathered) -> Markup:
    """One line for each missing or damaged part; nothing if there is none."""
    files, unreadable = run.files, run.measured.num_unreadable
    lines = [f"{name} cannot be read: {why}" for name, why in files.damaged.items()]
    for name in ("config.yaml", "metrics.jsonl", "episodes"):
        if not (files.folder / name).exists():
            lines.append(f"{name} is missing; the parts of the page that need it are left out")
    if unreadable:
        lines.append(f"metrics.jsonl: {unreadable} lines cannot be read and are left out")
    lines += [f"episodes/{log}: {fault}" for log, fault in run.transcripts.faults.items()]
    return markup.notices(lines)


def _state(run: Gathered) -> str:
    made = f"{_utc(run.made_at):%d %B %Y, %H:%M} UTC"
    last = f"{_utc(run.measured.clock.ended):%d %B %Y, %H:%M} UTC" if run.measured.clock.num_lines else "never"
    how, why = run.files.ended or ("not known to be finished", "it is running or was killed")
    return f"{how.capitalize()}{f': {why}' if why else ''}. Last measured {last}; this page was made {made}."


def _what(run: Gathered, config: RunConfig) -> str:
    """What the run does, and how much of it has been done."""
    starts = [config.model_of(role).rstrip("/").rsplit("/", 1)[-1] for role in Role]
    model, game = " and ".join(dict.fromkeys(starts)), run.files.game
    parts = []
    if config.imitation.enabled:
        scripted = "a scripted expert" if game.guesses else "the game's scripted seats"
        scripted = told_apart(config.game_names, "the games' scripted players") or scripted
        is_scripted = config.imitation.source == "scripted"
        played = f"{run.num_games(EXPERT):,} of {config.imitation.games:,} games so far" if is_scripted else ""
        so_far = ", ".join(filter(None, (played, "nothing trained on yet")))
        undone = "" if str(IMITATED) in run.measured.stages else f" ({so_far})"
        parts.append(f"imitates {scripted if is_scripted else 'given games'}{undone}")
    if config.self_play.rounds > 0:
        is_stream = config.schedule == "stream"
        how = "play and training at the same time" if is_stream else "play and training in turns"
        planned = config.self_play.rounds * config.versions_per_round
        streamed = f"{run.num_games(STREAM):,} of {planned * config.stream.fresh_games:,} games"
        parts.append(f"plays itself: {streamed if is_stream else _rounds(run, config)}, {how}")
    return f"{model}{_seats(config, game)} {', then '.join(parts) or 'is evaluated'}."


def _rounds(run: Gathered, config: RunConfig) -> str:
    """Done are the rounds that were trained on, or whose games are complete."""
    planned, games = config.self_play.rounds, config.self_play.games_per_round
    stages = [Stage.of_round(number) for number in range(1, planned + 1)]
    done = sum(str(stage) in run.measured.stages or run.num_games(stage) >= games for stage in stages)
    rounds = "1 round" if planned == 1 else f"{planned} rounds"
    if begun := run.num_games(stages[done]) if done < planned else 0:
        part = f"{begun} of {games} games of the {'next' if done else 'first'}"
        return f"{done} of {rounds}, and {part}" if done else f"{part} of {rounds}"
    return f"{done or 'none'} of {rounds} of {games} games"


def _seats(config: RunConfig, game: GameNames) -> str:
    if config.policies == "shared":
        return ""
    first, second = game.seats
    seats = f"an {first} and a {second}" if game.guesses else f"{first} and {second}"
    return f", as {seats} with separate weights,"


def _where(config: RunConfig, game: GameNames) -> str:
    engine, learner, limits = config.engine, config.learner, config.engine.num_engines
    count = f"{limits.min} to {limits.max}" if isinstance(limits, EngineRange) else str(limits)
    shares = ", ".join(f"{each.full_name} ({each.share:.0%})" for each in config.games)
    rules = f"referee {config.games[0].rules}" if game.guesses else f"game {game.name}"
    rules = told_apart(config.game_names, f"games {shares}") or rules
    turns = "" if game.max_turns is None else f", up to {game.max_turns} turns a player"
    # The file, which may not be here, decides the stage.
    sharding = f"DeepSpeed {Path(learner.deepspeed).name}" if learner.deepspeed else f"ZeRO {learner.zero_stage}"
    return (
        f"{_devices(engine, count, f'{_ENGINES[engine.kind]} engine')}, {engine.dtype}; "
        f"{_devices(learner, str(learner.num_ranks), 'learner rank')}, {learner.dtype}, {sharding}; "
        f"objective {config.objective.loss}, {rules}{turns}."
    )


def _devices(part: EngineConfig | LearnerConfig, count: str, name: str) -> str:
    plural = "" if count == "1" else "s"
    each = f"{part.num_gpus:g} GPU" if part.num_gpus else f"{part.num_cpus:g} CPU"
    return f"{count} {name}{plural} with {each}{' each' if plural else ''}"


def _numbers(run: Gathered) -> Iterator[tuple[str, str, str]]:
    """(name, value, remark)."""
    yield "games", in_words(run.transcripts.num_games), ""
    sampled, every = run.transcripts.num_sampled, run.transcripts.num_tokens
    others = f"{in_words(every - sampled)} more are of scripted or served players"
    yield "sampled tokens", in_words(sampled), others * (every > sampled)
    yield "learner steps", in_words(run.measured.num_steps), ""
    yield "newest version", str(run.measured.newest_version), ""
    pauses = len(run.measured.clock.pauses)
    yield "time", duration(run.measured.clock.seconds), f"in {pauses + 1} parts" if pauses else ""
    for name, own in run.each_game.items():
        for title, value, remark in _last_score(own.files):
            yield told_apart(run.files.games, f"{name}: ") + title, value, remark


def _last_score(files: RunFiles) -> Iterator[tuple[str, str, str]]:
    """The newest stage's score against the imitated model, or against the last player that it met in both seats.
    Without stages of a run: the score of the last two players."""
    met = {(match.attacker, match.defender): None for match in files.matches if match.games}
    pairs = [(newest, other) for other, newest in reversed(met) if newest != other and (newest, other) in met]
    if not pairs:
        return
    newest, other = max(pairs, key=_place)
    found = score([files.matches], newest, other)
    few = f"no interval: fewer than {MIN_WORDS} {files.game.scenarios}"
    between = f"{found.low:.2f} to {found.high:.2f}" if found.has_interval else few
    yield f"{newest} against {other}", f"{found.value:.2f}", f"{between}; 0.5 is even"


def _place(pair: tuple[str, str]) -> tuple[bool, int, int, bool]:
    newest, other = map(Stage.parse, pair)
    return (newest.is_player, *newest.order[:2], other == IMITATED)


def _utc(time: float) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(time, datetime.UTC)

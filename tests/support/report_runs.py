"""Run folders for tests of the report: really played and judged games, in logs as a run writes them."""

import asyncio
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from actors.arena import GameTask, Player, TaskList
from actors.models import load_tokenizer
from actors.policy import Sampling
from actors.pool import EnginePool
from actors.transformers_policy import TransformersPolicy
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import EpisodeLog
from spag_ray.episodes.wire import encode
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.decks import Card
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.results.lines import StreamLine
from spag_ray.results.matches import Match, write_matches
from tests.support.loop import collect, play_games
from tests.support.runs import tiny_run
from tests.support.taboo import expert_of, taboo_rules
from tests.support.tiny_model import TARGETS

MAX_TURNS = 2
_CLUES = ("water", "music", "stripes", "fruit", "king", "health")
CARDS = {word: Card(word, (clue,)) for word, clue in zip(TARGETS, _CLUES, strict=True)}


def play(model: Path, stage: str, count: int, scripted: bool = False, scored: bool = False) -> list[Episode]:
    """Games of a tiny model against itself, or of the rule-based expert, in the order of their numbers. `scored`: with
    what the defender could have known."""
    tokenizer = load_tokenizer(str(model))
    renderer = taboo_renderer(load_template("chat"), tokenizer, MAX_TURNS)
    policy: Any = TransformersPolicy(str(model), name="policy")
    if scripted:
        policy = expert_of(CARDS, renderer.reply_ids, max_turns=MAX_TURNS, seed=3)
    pool = EnginePool(policy.name)
    pool.join("engine-0", policy)
    players = dict.fromkeys(("attacker", "defender"), Player(pool, renderer, Sampling(1.0, 12)))
    tasks = [GameTask(n, TARGETS[n % len(TARGETS)], stage, seed=1, could_have_known=scored) for n in range(count)]
    games = asyncio.run(collect(play_games(TaskList(tasks), players, taboo_rules(MAX_TURNS), 16)))
    return sorted(games, key=lambda game: game.number)


def write_log(folder: Path, stage: str, episodes: Iterable[Episode]) -> Path:
    log = EpisodeLog(folder / "episodes" / f"{stage}.log")
    log.append(*(encode(replace(episode, stage=stage)) for episode in episodes))
    log.close()
    return log.path


def repeated(episodes: Sequence[Episode], count: int) -> Iterator[Episode]:
    """As many as are wanted, each with a number of its own."""
    for number in range(count):
        yield replace(episodes[number % len(episodes)], number=number, episode_id=f"many/{number:06d}")


def make_run(folder: Path, model: Path, words: Path, **changes: Any) -> RunConfig:
    """A finished run of two rounds, small: its folder, games, matches and measurements."""
    config = tiny_run(model, words, **changes)
    make_run_folder(folder, config)
    expert, played = play(model, "expert", 24, scripted=True), play(model, "spag-1", 24)
    write_log(folder, "expert", expert)
    for stage in ("spag-1", "spag-2"):
        write_log(folder, stage, played)
    held_out = play(model, "spag-1", 24, scored=True)  # the same games
    for stage in ("eval-imitated", "eval-spag-2"):
        write_log(folder, stage, held_out)
    pairs = (("imitated", "imitated"), ("spag-2", "spag-2"), ("spag-2", "imitated"), ("imitated", "spag-2"))
    matches = [Match.of(attacker, defender, expert[4 * n :], "taboo") for n, (attacker, defender) in enumerate(pairs)]
    write_matches(folder / "matches.json", matches)
    write_metrics(folder / "metrics.jsonl", measurements())
    (folder / "ended.json").write_text('{"ended": "finished"}')
    return config


def make_interrupted_run(folder: Path, model: Path, words: Path, round_games: int = 0) -> RunConfig:
    """A run with tasks that was killed while it imitated, after four games of the base model in which one said nothing
    and all of the expert's. With `round_games`: killed later, in the first of two rounds."""
    config = tiny_run(model, words, evaluation={"games": 6, "base_games": 4, "tasks": ["spag_reasoning"]})
    make_run_folder(folder, config)
    base = play(model, "eval-base", 4, scored=True)
    silent = replace(base[0].turns[0], text="", token_ids=(1,), logprobs=(-0.1,))
    verdict = Verdict(Outcome.ATTACKER_BREACH, EndReason.EMPTY_REPLY, 1, "the attacker said nothing", 0, None)
    base[0] = replace(base[0], turns=(silent,), verdict=verdict)
    write_log(folder, "eval-base", base)
    write_log(folder, "expert", play(model, "expert", 12, scripted=True))
    write_matches(folder / "matches.json", [Match.of("base", "base", base, "taboo")])
    lines = measurements(num_steps=1)
    lines = lines[:3] if not round_games else [line for line in lines if line.get("stage") != "spag-1"][:6]
    write_metrics(folder / "metrics.jsonl", lines)
    if round_games:
        write_log(folder, "eval-imitated", play(model, "eval-imitated", 6, scored=True))
        write_log(folder, "spag-1", play(model, "spag-1", round_games))
    return config


def write_metrics(path: Path, lines: Iterable[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def measurements(num_steps: int = 6, began: float = 1_760_000_000.0) -> list[dict[str, Any]]:
    """Lines as a run writes them: imitation and one round, each with a look at the buffer, steps and a sync."""
    lines: list[dict[str, Any]] = [{"time": began, "kind": "buffer", "waiting": 0, "oldest_s": 0.0}]
    time = began
    for version, (stage, phase) in enumerate((("imitated", "imitation"), ("spag-1", "self_play")), start=1):
        time += 10
        lines.append({"time": time, "kind": "games", "phase": phase, "turns": 40, "tokens": 400 * version})
        lines.append({"time": time, "kind": "buffer", "waiting": 24, "oldest_s": 1.0})
        for step in range(num_steps):
            time += 2
            values = {"loss": 2.0 - 0.1 * step, "kl": 0.01 * step, "entropy": 3.0, "gradient_norm": 1.0}
            values |= {"clip_fraction": 0.0, "gap_mean": 0.02, "attacker_weight": 0.7, "defender_weight": 2.0}
            more = {"stage": stage, "policy": "policy", "step": step + 1, "num_target_tokens": 120, "seconds": 1.5}
            lines.append({"time": time, "kind": "step", **more, **values})
        sync = {"policy": "policy", "version": version, "seconds": 0.4, "probe_gap_mean": 0.01}
        lines.append({"time": time + 1, "kind": "sync", **sync})
    return lines


def streamed() -> list[dict[str, Any]]:
    """Lines of a stream: how many episodes of each age it has given out so far; the last after it was restarted."""
    sums = ((8, 0, 0, 0), (8, 8, 0, 0), (10, 14, 0, 0), (0, 0, 4, 4))
    lines = []
    for number, counts in enumerate(sums):
        line = StreamLine(
            version=number,
            waited_s=0.5,
            games=sum(counts),
            tokens_per_s=100.0,
            games_per_s=2.5,
            begun=40,
            waiting=2,
            evicted=number,
            lost=0,
            repeated=0,
            permits_free=4,
            lags=dict(enumerate(counts)),
        )
        lines.append({"time": 100.0 + number, "kind": line.kind, **line.values()})
    return lines


HOSTILE = "</script><script>alert(1)</script><!-- <img src=x onerror=alert(2)> ]]> \u2028 & \"'"


def hostile_episode(number: int = 0) -> Episode:
    turns = (
        Turn(Role.ATTACKER, HOSTILE, (1,), (2, 3), (-0.5, -0.1), HOSTILE),
        Turn(Role.DEFENDER, f"It is {HOSTILE}", (1,), (2,), (-1.5,), HOSTILE, finish_reason=HOSTILE),
    )
    reason, span = f"the defender said {HOSTILE!r}", (6, 6 + len(HOSTILE))
    verdict = Verdict(Outcome.ATTACKER_WINS, EndReason.SAID_WORD, 2, reason, 1, span)
    return Episode(f"x/{number}", number, "spag-1", HOSTILE, 4, "strict", 1.0, turns, verdict)

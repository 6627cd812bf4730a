"""Run folders of Kuhn poker for tests of what people see: judged games, matches, and exact measurements."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.loading import parse_config
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_log
from spag_ray.game.game_form import verdict_of
from spag_ray.game.rules import Outcome, next_role
from spag_ray.game.turn import Turn
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.results.lines import ExploitabilityLine
from spag_ray.results.matches import Match, read_matches, write_matches
from tests.support.episodes import game
from tests.support.kuhn_strategy import Strategy, in_order, optimum, uniform
from tests.support.report_runs import measurements, write_log, write_metrics

GAME = KuhnPoker()
# One game of each end: wins of both seats, a breach of both, a fold.
GAMES = (
    ("KJ", ("bet", "fold")),
    ("QK", ("check", "check")),
    ("JQ", ("bet", "raise")),
    ("QJ", ("pass",)),
    ("KQ", ("check", "bet", "call")),
)


def kuhn_game(stage: str, number: int, deal: str, said: Sequence[str], policy: str = "policy") -> Episode:
    turns = tuple(Turn(next_role(place), text, (1,), (2, 3), (-0.5, -0.5), policy) for place, text in enumerate(said))
    verdict = verdict_of(GAME, said, deal)
    assert verdict is not None
    return Episode(f"{stage}/{number}", number, stage, deal, 2, "strict", 1.0, turns, verdict, "kuhn")


def measured(stage: str, version: int, strategy: Strategy) -> ExploitabilityLine:
    shares = in_order(strategy)
    named = {f"{n}/{reply}": share for n, each in enumerate(shares) for reply, share in each.items()}
    return ExploitabilityLine(stage, "kuhn", version, named, GAME.measure(shares))


def write_measured(folder: Path, *lines: ExploitabilityLine) -> None:
    """The measurements of a run, and these after them."""
    found = [{"time": 1_760_000_100.0, "kind": line.kind, **line.values()} for line in lines]
    write_metrics(folder / "metrics.jsonl", [*measurements(), *found])


def make_kuhn_run(folder: Path, **settings: Any) -> Path:
    """A finished run of one round, and of its evaluation."""
    config = {"game": {"name": "kuhn"}, "prompts": "lines", "imitation": {"enabled": False}, **settings}
    make_run_folder(folder, parse_config(config))
    for stage in ("spag-1", "eval-spag-1", "match-spag-1@base"):
        write_log(folder, stage, [kuhn_game(stage, number, *each) for number, each in enumerate(GAMES)])
    games = [kuhn_game("", number, *each) for number, each in enumerate(GAMES)]
    pairs = (("spag-1", "spag-1"), ("spag-1", "base"), ("base", "spag-1"))
    write_matches(folder / "matches.json", [Match.of(*pair, games, "kuhn") for pair in pairs])
    write_measured(folder, measured("base", 0, uniform()), measured("spag-1", 1, optimum(0.2)))
    (folder / "ended.json").write_text('{"ended": "finished"}')
    return folder


def renamed(folder: Path, name: str) -> None:
    """Give the game another name in the run's records. Games that Taboo cannot have end as they did."""
    for path in (folder / "episodes").glob("*.log") if name != "taboo" else ():
        games = [replace(each, game=name) for each in read_log(path)]
        path.unlink()
        write_log(folder, path.stem, games)
    write_matches(folder / "matches.json", [replace(each, game=name) for each in read_matches(folder / "matches.json")])
    metrics = folder / "metrics.jsonl"
    metrics.write_text(metrics.read_text().replace('"game": "kuhn"', f'"game": "{name}"'))


def make_two_games_run(folder: Path) -> Path:
    """A finished round of Taboo and Kuhn poker, with its evaluation."""
    games = [{"name": "taboo", "share": 0.25}, {"name": "kuhn", "share": 0.75}]
    config = {"games": games, "prompts": "lines", "imitation": {"enabled": False}}
    make_run_folder(folder, parse_config(config))
    of_kuhn = [kuhn_game("", number, *each) for number, each in enumerate(GAMES)]
    played = [game(len(GAMES) + number, outcome) for number, outcome in enumerate(Outcome)]
    of_taboo = [replace(g, turns=tuple(replace(t, policy="policy") for t in g.turns), max_turns=2) for g in played]
    for stage in ("spag-1", "eval-spag-1"):
        write_log(folder, stage, [replace(each, stage=stage) for each in (*of_kuhn, *of_taboo)])
    matches = [
        Match.of(*pair, episodes, name)
        for pair in (("spag-1", "spag-1"), ("spag-1", "base"), ("base", "spag-1"))
        for name, episodes in (("taboo", of_taboo), ("kuhn", of_kuhn))
    ]
    write_matches(folder / "matches.json", matches)
    write_measured(folder, replace(measured("spag-1", 1, optimum(0.2)), game="kuhn"))
    return folder

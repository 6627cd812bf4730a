"""Whom should self-play meet? Kuhn and Leduc poker, measured exactly: self-play, fictitious self-play, two kinds of
PFSP and PSRO, at as many games.

    python -m benchmarks.meta_strategies run --seeds 1 2 3 --out runs/meta     # about a quarter of an hour
    python -m benchmarks.meta_strategies tables --out runs/meta                # Markdown
    python -m benchmarks.meta_strategies curve --out runs/meta --image meta.html
    python -m benchmarks.meta_strategies tables --out docs/meta                # of the records in the documentation

The league is that of a run (actors/league.py): it keeps versions, draws opponents and estimates what versions gain from
each other. The player is a table, so that only the meta-strategy differs and a run takes seconds: at each information
set a distribution over its replies, changed once a round by magnetic mirror descent (Sokota et al., 2023) towards the
replies that paid more than the deal's mean, and towards uniform play. Three policies are measured: the newest one, the
average of the versions measured so far, and an equilibrium of the game between them. Its payoffs are computed exactly
here; a run has estimates, for the versions that its league keeps. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from actors.league import League, PastVersion
from benchmarks.machine import machine
from benchmarks.seed_runs import add_band
from spag_ray.config.opponents import LeagueConfig
from spag_ray.game.game_tree import Policy
from spag_ray.game.rules import Outcome
from spag_ray.games.openspiel_game import OpenSpielGame
from spag_ray.host.whole_files import write_atomically
from spag_ray.results.ratings import equilibrium


@dataclass(frozen=True)
class Setting:
    """A game, games in each of its rounds, and the table's learning: see `Player.learn`."""

    games: int
    rounds: int
    rate: float
    pull: float


SETTINGS = {"kuhn_poker": Setting(500, 200, 0.5, 0.1), "leduc_poker": Setting(2000, 200, 0.5, 0.05)}
STRATEGIES: dict[str, dict[str, Any]] = {
    "self-play": {},
    "fictitious": {"past_share": 1.0, "choose": "uniform"},
    "pfsp-hard": {"past_share": 1.0, "choose": "hard"},
    "pfsp-even": {"past_share": 1.0, "choose": "even"},
    "psro": {"past_share": 1.0, "choose": "nash"},
}
PLACES, KEPT = 8, 32  # of a league
EVERY = 5  # rounds between two measurements
SHARES = 200  # a mixture is told to a game's `average` by about this many policies
POLICIES = ("newest", "average", "equilibrium")
MOST_PAID = 4.0  # an importance-weighted payoff is at most this


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("run", "tables", "curve"))
    parser.add_argument("--env", choices=tuple(SETTINGS), nargs="+", default=list(SETTINGS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--only", choices=tuple(STRATEGIES), nargs="+", default=list(STRATEGIES))
    parser.add_argument("--rounds", type=int, help="of every run, instead of the setting's")
    parser.add_argument("--out", type=Path, default=Path("runs/meta"))
    parser.add_argument("--image", type=Path, default=Path("meta.html"))
    asked = parser.parse_args()
    file = asked.out / "records.jsonl"
    if asked.what == "run":
        asked.out.mkdir(parents=True, exist_ok=True)
        todo = [(env, name, seed, asked.rounds) for env in asked.env for name in asked.only for seed in asked.seeds]
        write_atomically(file, "".join(records_without([each[:3] for each in todo], file)))
        with ProcessPoolExecutor(2) as processes, file.open("a") as out:
            for record in processes.map(measured, *zip(*todo, strict=True)):
                print(json.dumps(record), file=out, flush=True)  # those of an interrupted program stay
                told = (f"{record[key]}" for key in ("env", "strategy", "seed"))
                ends_at = ", ".join(f"{what} {record[what][-1]:.3f}" for what in POLICIES)
                print(f"{', '.join(told)}: {ends_at}, {record['seconds']:.0f} s", flush=True)
    if not file.exists():
        sys.exit(f"{asked.out} has no records of runs")
    records = [json.loads(line) for line in file.read_text().splitlines()]
    if asked.what == "curve":
        asked.image.write_text(page(records))
    else:
        print("\n".join(tables(records)))
        print(json.dumps({"ends": ends(records), **machine()}))


def records_without(runs: Sequence[tuple[str, str, int]], file: Path) -> list[str]:
    """The lines of a file's records that are not of these runs (game, strategy, seed)."""
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    lines = [line for line in lines if line.endswith("\n")]  # a program that was killed may leave a torn one
    return [line for line in lines if itemgetter("env", "strategy", "seed")(json.loads(line)) not in runs]


class Player:
    """A table: at each information set of a game, logits [replies]."""

    def __init__(self, game: OpenSpielGame, setting: Setting) -> None:
        self._setting = setting
        self.replies = [decision.replies for decision in game.decisions()]
        self._logits = [np.zeros(len(each)) for each in self.replies]

    def shares(self) -> list[NDArray[np.float64]]:
        found = [np.exp(each - each.max()) for each in self._logits]
        return [each / each.sum() for each in found]

    def policy(self) -> Policy:
        return [
            dict(zip(names, each.tolist(), strict=True))
            for names, each in zip(self.replies, self.shares(), strict=True)
        ]

    def learn(self, gained: Sequence[NDArray[np.float64]], visits: Sequence[int]) -> None:
        """`gained` [places][replies]: what games paid more than the mean of their deal, summed over those that gave
        this reply, among `visits` [places]. A step of magnetic mirror descent: logits towards the mean payoff of each
        reply by `rate`, and all of them back to uniform play by `pull`."""
        rate, pull = self._setting.rate, self._setting.pull
        for place, (shares, gains, count) in enumerate(zip(self.shares(), gained, visits, strict=True)):
            if count:
                values = np.clip(gains / (count * shares), -MOST_PAID, MOST_PAID)
                self._logits[place] += rate * (values - shares @ values)
                self._logits[place] /= 1 + rate * pull


def measured(env: str, strategy: str, seed: int, rounds: int | None) -> dict[str, Any]:
    """A whole run, and NashConv after every EVERY rounds, in shares of uniform play's."""
    began, game, setting = time.monotonic(), OpenSpielGame(env), SETTINGS[env]
    config = {"num_engines": PLACES, "max_snapshots": KEPT} | STRATEGIES[strategy]
    policies = list(trained(game, setting, League(LeagueConfig.model_validate(config), seed), rounds or setting.rounds))
    played = time.monotonic() - began
    uniform = game.measure(policies[0])["nash_conv"]

    def curve(measured: Iterable[Policy]) -> list[float]:
        return [round(game.measure(policy)["nash_conv"] / uniform, 4) for policy in measured]

    return {
        "env": env, "strategy": strategy, "seed": seed, "games": setting.games * (rounds or setting.rounds),
        "seconds": round(played, 1), "newest": curve(policies), "average": curve(average(game, policies)),
        "equilibrium": curve(solved(game, policies)),
    }  # fmt: skip


def trained(game: OpenSpielGame, setting: Setting, league: League, rounds: int) -> Iterator[Policy]:
    """The newest policy at the start, and after every EVERY rounds."""
    player, chance = Player(game, setting), random.Random(league.seed)
    kept: dict[int, list[list[float]]] = {}
    for version in range(rounds + 1):
        if version % EVERY == 0:
            yield player.policy()
        own = [np.cumsum(each).tolist() for each in player.shares()]
        drawn: list[PastVersion] = []
        if league.is_open:
            league.reached(version, version)
            kept[version] = own
            for dropped in league.keep(PastVersion(version, {"policy": ""})):
                del kept[dropped.version]
            drawn = league.draw(PLACES)
        opponents = league.opponents(PLACES)
        gained, visits = [np.zeros(len(each)) for each in player.replies], [0] * len(player.replies)
        for steps, paid, learns in _games(game, setting, opponents, (version, own, kept, drawn), league, chance):
            for place, reply, seat in steps:
                if learns[seat]:
                    gained[place][reply] += paid if seat == 0 else -paid
                    visits[place] += 1
        player.learn(gained, visits)


def _games(game: OpenSpielGame, setting: Setting, opponents: Any, players: Any, league: League, chance: Any) -> Any:
    """(the steps, the first seat's payoff over the mean of the deal's games, whether each seat learns) of each game."""
    version, own, kept, drawn = players
    tree, played = game._tree, []
    for number in range(setting.games):
        names, versions, tables = opponents(number), [version, version], [own, own]
        for seat, name in enumerate(names):
            if name not in ("attacker", "defender"):
                versions[seat] = drawn[int(name.split("/")[0].removeprefix("past-"))].version
                tables[seat] = kept[versions[seat]]
        deal = number // 2 % len(tree._roots)
        node, steps = tree._roots[deal], []
        while not isinstance(node, tuple):
            place, ends = node.place, tables[node.place.seat][node.place.number]
            draw = chance.random() * ends[-1]
            reply = next(index for index, end in enumerate(ends) if draw <= end)
            steps.append((place.number, reply, place.seat))
            node = node.children[place.decision.replies[reply]]
        learns = [name in ("attacker", "defender") for name in names]
        played.append((deal, steps, node[0], learns))
        if not all(learns):
            outcome = Outcome.TIED
            if node[0]:
                outcome = Outcome.ATTACKER_WINS if node[0] > 0 else Outcome.DEFENDER_WINS
            league.matrix.add(f"policy@{versions[0]}", f"policy@{versions[1]}", outcome, node[0])
    means = [statistics.fmean(paid for at, _, paid, _ in played if at == deal) for deal in range(len(tree._roots))]
    return [(steps, paid - means[deal], learns) for deal, steps, paid, learns in played]


def average(game: OpenSpielGame, policies: Sequence[Policy]) -> Iterator[Policy]:
    """After each measurement, the average of all versions measured so far."""
    for count in range(1, len(policies) + 1):
        yield game.average(policies[:count])


def solved(game: OpenSpielGame, policies: Sequence[Policy]) -> Iterator[Policy]:
    """After each measurement, the equilibrium of the game between the versions measured so far."""
    numbers = range(len(policies))
    first = [[game.value_between(one, other) for other in policies] for one in policies]
    gains = [[(first[one][other] - first[other][one]) / 2 for other in numbers] for one in numbers]
    for count in range(1, len(policies) + 1):
        shares = equilibrium([row[:count] for row in gains[:count]])
        yield game.average([policies[number] for number in range(count) for _ in range(round(SHARES * shares[number]))])


def ends(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, list[float]]]:
    """{game: {strategy: [newest (mean of the last quarter), average, equilibrium], means of the seeds}}"""
    found: dict[str, dict[str, list[float]]] = {}
    for env in SETTINGS:
        for name in STRATEGIES:
            if of := [each for each in records if (each["env"], each["strategy"]) == (env, name)]:
                means = [statistics.fmean(_end(each, what) for each in of) for what in POLICIES]
                found.setdefault(env, {})[name] = [round(each, 3) for each in means]
    return found


def _end(record: dict[str, Any], what: str) -> float:
    curve = record[what]
    return statistics.fmean(curve[-max(1, len(curve) // 4) :]) if what == "newest" else float(curve[-1])


def tables(records: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: for each game and strategy NashConv at the end, in shares of uniform play's, seed by seed."""
    lines = ["| game | opponents | newest, mean of the last quarter | average | equilibrium | games | seconds |"]
    lines += ["|---|---|---|---|---|---|---|"]
    for env, found in ends(records).items():
        for name, means in found.items():
            of = [each for each in records if (each["env"], each["strategy"]) == (env, name)]
            cells = [env.removesuffix("_poker"), name]
            for what, mean in zip(POLICIES, means, strict=True):
                cells.append(", ".join(f"{_end(each, what):.2f}" for each in of) + f": {mean:.2f}")
            seconds = statistics.fmean(each["seconds"] for each in of)
            lines.append(f"| {' | '.join(cells)} | {of[0]['games']:,} | {seconds:.0f} |")
    return lines


def page(records: Sequence[dict[str, Any]]) -> str:
    """NashConv by round, in shares of uniform play's: a row for each game, a column for the newest policies, averages
    and equilibria. A line is the mean of the seeds, a band their range."""
    from plotly.subplots import make_subplots

    envs = [env for env in SETTINGS if any(record["env"] == env for record in records)]
    titles = [f"{env.replace('_', ' ')}: {what}" for env in envs for what in POLICIES]
    figure = make_subplots(rows=len(envs), cols=3, shared_yaxes=True, subplot_titles=titles, vertical_spacing=0.14)
    colours = ("120,120,120", "31,119,180", "214,39,40", "255,127,14", "0,128,128")
    for row, env in enumerate(envs, start=1):
        for name, colour in zip(STRATEGIES, colours, strict=True):
            of = [each for each in records if (each["env"], each["strategy"]) == (env, name)]
            for column, what in enumerate(POLICIES if of else (), start=1):
                points = list(zip(*(each[what] for each in of), strict=True))
                rounds, is_named = range(0, EVERY * len(points), EVERY), (row, column) == (1, 1)
                named: dict[str, Any] = {"name": name, "legendgroup": name, "showlegend": is_named}
                add_band(figure, rounds, points, colour, **named, row=row, col=column)
    figure.update_xaxes(title_text="rounds", row=len(envs))
    figure.update_yaxes(title_text="NashConv / uniform play's", rangemode="tozero", col=1)
    figure.update_layout(template="plotly_white", width=1000, height=310 * len(envs), margin={"t": 40, "b": 50})
    return str(figure.to_html(include_plotlyjs=True, config={"displayModeBar": False}))


if __name__ == "__main__":
    main()

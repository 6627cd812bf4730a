"""Does self-play teach to give hints? The imitated model and the last stage of configs/taught.yaml, on held-out words.

    python -m benchmarks.taught run --seed 1 --out runs/taught     # one seed; called again, it resumes
    python -m benchmarks.taught tables --out runs/taught           # of all seeds that are done: Markdown, headline.json

`run` trains, plays both models against each other and themselves in both seats, and against the scripted expert, and
measures hints and hearing (benchmarks/hearing.py); it keeps a record, OUT/SEED.json. Shares are of all games of a
pairing; intervals are of 95 %, a bootstrap over seeds, if there are several, and their words. OUT/headline.json has

    right_guesses_last          share of the last stage's games against itself that a right guess ended
    right_guesses_as_attacker   of its games with the imitated model as defender, minus imitated against itself
    right_guesses_as_defender   of its games with the imitated model as attacker, minus imitated against itself
    first_choice_own_hints      how often the word is the last stage's first choice after four own hints

A score as in other tables would say little: a right guess counts as the attacker's loss, and attackers are taught to
bring it about.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.hearing import Gain, interval, mean_of, model_of, of_run
from benchmarks.seed_runs import arguments, called, records_in, seconds_of, train
from cluster.guarded import run_guarded
from spag_ray.config.loading import load_config
from spag_ray.episodes.log import read_log
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.matches import Match, read_matches
from spag_ray.stages import Stage

CONFIG = "configs/taught.yaml"
IMITATED, LAST, EXPERT = "imitated", "taught", "expert"  # players
NUM_GAMES, NUM_DIALOGUES = 240, 120  # of each pairing, of each model
SEATS = ((LAST, LAST), (IMITATED, IMITATED), (LAST, IMITATED), (IMITATED, LAST))  # attacker, defender
WITH_EXPERT = ((LAST, EXPERT), (IMITATED, EXPERT), (EXPERT, LAST), (EXPERT, IMITATED))
ENDS = {
    "right guesses": (Outcome.DEFENDER_WINS,),
    "wrong guesses, traps": (Outcome.ATTACKER_WINS,),
    "ties": (Outcome.TIED,),
    "breaches": (Outcome.ATTACKER_BREACH, Outcome.DEFENDER_BREACH),
}


def main() -> None:
    asked = arguments(__doc__, ("run", "tables"), "runs/taught").parse_args()
    if asked.what == "run":
        run_seed(asked.out, asked.seed, asked.overrides)
        return
    records = records_in(asked.out)
    print("\n".join(tables(records)))
    path = asked.out / "headline.json"  # benchmarks/contest.py adds its figures
    before = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps(before | headline(records), indent=1) + "\n")


def run_seed(out: Path, seed: int, overrides: Sequence[str]) -> None:
    """Trains, or resumes; plays and measures what has no record yet; writes the record."""
    run = out / f"seed-{seed}"
    train(CONFIG, run, [f"seed={seed}", *overrides])
    config = load_config(str(run / "config.yaml"))
    last = str(Stage.of_round(config.self_play.rounds))
    matches = out / f"matches-{seed}-{last}.json"  # further rounds make other players
    players: list[str] = []
    for name, stage in ((LAST, last), (IMITATED, IMITATED)):
        models = dict.fromkeys(str(model_of(run, config, stage, role)) for role in Role)  # one, or one for each seat
        players += ["--player", f"{name}={','.join(models)}"]
    command = ["match", str(run / "config.yaml"), "--games", str(NUM_GAMES), "--out", str(matches), *players]
    called(command)
    called([*command, "--player", f"{EXPERT}=scripted", "--against", EXPERT])
    record = {
        "seed": seed,
        "seconds": seconds_of(run),
        "rounds": {number: played(run, number) for number in range(1, config.self_play.rounds + 1)},
        "matches": [each.as_json() for each in read_matches(matches)],
        "heard": of_run(run, last, NUM_DIALOGUES),
    }
    (out / f"{seed}.json").write_text(json.dumps(record) + "\n")


def tables(records: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: how games ended, what was measured of hints and hearing; all seeds together."""
    lines = [f"Seeds: {', '.join(str(each['seed']) for each in records)}.", ""]
    heads = ["attacker", "defender", "games", *ENDS, "right guesses, each seed"]
    lines += [f"| {' | '.join(heads)} |", "|" + "---|" * len(heads)]
    for attacker, defender in SEATS + WITH_EXPERT:
        shares = [ends_of(records, attacker, defender, ends) for ends in ENDS.values()]
        if not shares[0]:
            continue  # records of earlier seeds have no expert
        of_seeds = [ends_of([record], attacker, defender, ENDS["right guesses"]) for record in records]
        each = [f"{100 * estimate(found)['value']:.0f}" if found else "-" for found in of_seeds]
        cells = [*map(percent, shares), f"{' '.join(each)} %"]
        lines.append(f"| {attacker} | {defender} | {len(shares[0])} | {' | '.join(cells)} |")
    lines += ["", "| measured (benchmarks/hearing.py) | mean [95 %] | of |", "|---|---|---|"]
    for name in records[0]["heard"]:
        if measured := heard(records, name):
            value, low, high = estimate(measured).values()
            lines.append(f"| `{name}` | {value:.2f} [{low:.2f}, {high:.2f}] | {len(measured)} |")
    lines += by_round(records)
    found = headline(records)
    for seat in ("attacker", "defender"):
        value, low, high = (100 * each for each in found[f"right_guesses_as_{seat}"].values())
        lines += ["", f"Right guesses of {LAST} as {seat} with {IMITATED}, minus {IMITATED} with itself: "]
        lines[-1] += f"{value:+.0f} points [{low:+.0f}, {high:+.0f}]."
    minutes = ", ".join(f"{each['seconds'] / 60:.0f}" for each in records)
    return [*lines, "", f"Training took {minutes} minutes."]


def played(run: Path, number: int) -> list[tuple[str, str, float | None, float | None]]:
    """(word, outcome, log p(word) of the listener after the first hint, after the last one) of a round's games, which
    the models of the round before have played."""
    found: list[tuple[str, str, float | None, float | None]] = []
    for episode in read_log(run / "episodes" / f"{Stage.of_round(number)}.log"):
        # Before the first hint, and after each one that the defender has read.
        heard = [turn.listener_logprob for turn in episode.turns if turn.listener_logprob is not None][1:]
        ends = (heard[0], heard[-1]) if heard else (None, None)
        found.append((episode.scenario, str(episode.verdict.outcome), *ends))
    return found


def by_round(records: Sequence[dict[str, Any]]) -> list[str]:
    """Markdown: the games of self-play, each round on other words; all seeds together."""
    lines = ["", "| round | right guesses | log p(word) after the first hint | after the last |", "|---|---|---|---|"]
    for number in dict.fromkeys(number for record in records for number in record["rounds"]):
        games = [
            (f"{record['seed']}/{word}", outcome, *heard)
            for record in records
            for word, outcome, *heard in record["rounds"].get(number, [])
        ]
        right = percent([Gain(word, float(outcome == Outcome.DEFENDER_WINS)) for word, outcome, *_ in games])
        cells = []
        for place in (2, 3):
            known = [Gain(game[0], value) for game in games if (value := game[place]) is not None]
            value, low, high = estimate(known).values() if known else [math.nan] * 3  # without a listener
            cells.append(f"{value:.2f} [{low:.2f}, {high:.2f}]" if known else "")
        lines.append(f"| {number} | {right} | {' | '.join(cells)} |")
    return lines


def headline(records: Sequence[dict[str, Any]]) -> dict[str, dict[str, float]]:
    """{figure: its value, low and high}; see the module's docstring."""
    right = ENDS["right guesses"]
    before = [gain._replace(side=False) for gain in ends_of(records, IMITATED, IMITATED, right)]
    found = {
        "right_guesses_last": ends_of(records, LAST, LAST, right),
        "right_guesses_as_attacker": [*ends_of(records, LAST, IMITATED, right), *before],
        "right_guesses_as_defender": [*ends_of(records, IMITATED, LAST, right), *before],
        "first_choice_own_hints": heard(records, "first_choice_own_hints"),
    }
    return {name: estimate(gains) for name, gains in found.items() if gains}


def ends_of(records: Sequence[dict[str, Any]], attacker: str, defender: str, ends: Sequence[Outcome]) -> list[Gain]:
    """1 for each game between them that ended so, 0 for each other."""
    return [
        Gain(f"{record['seed']}/{game.scenario}", float(game.outcome in ends))
        for record in records
        for match in map(Match.from_json, record["matches"])
        if (match.attacker, match.defender) == (attacker, defender)
        for game in match.games
    ]


def estimate(gains: Sequence[Gain]) -> dict[str, float]:
    """Their mean, and its interval. There has to be one."""
    value, between = mean_of(gains), interval(gains, over_runs=True)
    assert value is not None
    assert between is not None
    return {"value": round(value, 4), "low": round(between[0], 4), "high": round(between[1], 4)}


def percent(gains: Sequence[Gain]) -> str:
    value, low, high = (100 * each for each in estimate(gains).values())
    return f"{value:.0f} % [{low:.0f}, {high:.0f}]"


def heard(records: Sequence[dict[str, Any]], name: str) -> list[Gain]:
    return [
        Gain(f"{record['seed']}/{word}", value, side)
        for record in records
        for word, value, side in record["heard"][name]
    ]


if __name__ == "__main__":
    raise SystemExit(run_guarded(lambda **_: main()))

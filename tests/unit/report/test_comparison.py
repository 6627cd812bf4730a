"""Runs side by side: each one's figures, their mean with its interval, and what two differ by, word by word."""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.cli import app
from cluster.monitor.comparison import figures_of, interval, last_values, paired
from cluster.runtime.output_files import told_apart_paths
from spag_ray.errors import InputError
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.lines import HeldOutLine, HeldOutReport, PlayLine, StepLine, StepReport
from spag_ray.results.matches import Game, Match, read_matches, write_matches
from spag_ray.results.standings import score
from tests.support.kuhn_runs import make_kuhn_run, make_two_games_run
from tests.support.report_runs import streamed

WORDS = ("river", "cat", "lamp", "stone")
MORE = ("sea", "oak", "bell")


def run_folder(folder: Path, won: Mapping[str, tuple[int, int]], loss: float = 0.5) -> Path:
    """A run whose spag-2 met `imitated`. `won`: {word: how many of its games as attacker and as defender}, of two."""
    folder.mkdir(parents=True)

    def games(wins: int, word: str, winner: Outcome, loser: Outcome) -> list[Game]:
        return [Game(word, winner if number < wins else loser, 4) for number in range(2)]

    ours, theirs = Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS
    attacks = [each for word, (wins, _) in won.items() for each in games(wins, word, ours, theirs)]
    defends = [each for word, (_, wins) in won.items() for each in games(wins, word, theirs, ours)]
    itself = [Game(word, outcome, 4) for word, outcome in zip(WORDS, (ours, ours, theirs, Outcome.TIED), strict=True)]
    write_matches(
        folder / "matches.json",
        [
            Match("spag-2", "imitated", tuple(attacks)),
            Match("imitated", "spag-2", tuple(defends)),
            Match("spag-2", "spag-2", tuple(itself)),
            Match("spag-1", "imitated", tuple(attacks)),
        ],
    )
    step = {"kind": "step", "policy": "policy", "step": 1, "loss": 9.0}
    itself_held, matched = HeldOutReport(4, 3, 1, 2, 0), HeldOutReport(4, 3, 3, 2, 0)
    play = PlayLine("spag-1", "taboo", 1, 30, 60, 99, 1.0, 30.0, 99.0, {}).values()
    lines = [
        {"time": 0.0, "kind": "play", **play},
        {"time": 10.0, "kind": "held_out", **HeldOutLine("eval-spag-2", "taboo", 3, itself_held).values()},
        {"time": 11.0, "kind": "held_out", **HeldOutLine("match-imitated@spag-2", "taboo", 3, matched).values()},
        step | {"time": 1800.0, "stage": "spag-1", "entropy": 9.0},
        step | {"time": 1900.0, "stage": "spag-2", "entropy": 1.0},
        step | {"time": 3600.0, "stage": "spag-2", "step": 2, "entropy": 2.0, "loss": loss},
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


@pytest.fixture
def two(tmp_path: Path) -> tuple[Path, Path]:
    first = run_folder(tmp_path / "a" / "seed-1", {"river": (2, 2), "cat": (1, 1), "lamp": (2, 0), "stone": (0, 0)})
    second = run_folder(tmp_path / "a" / "seed-2", {"river": (1, 1), "cat": (0, 0), "lamp": (0, 1)}, loss=0.7)
    return first, second


def test_a_runs_figures_are_those_of_its_newest_stage(two: tuple[Path, Path]) -> None:
    found = figures_of(two[0])
    assert found["score against imitated"] == pytest.approx((1 + 0.5 + 0.5 + 0) / 4)
    shares = {name: found[f"{name} against itself"] for name in ("attacker wins", "defender wins", "ties", "breaches")}
    assert shares == {"attacker wins": 0.5, "defender wins": 0.25, "ties": 0.25, "breaches": 0.0}
    assert found["games with a right guess"] == 0.25, "against itself, not in its matches"
    assert found["entropy of the last stage"] == 1.5
    assert "kl of the last stage" not in found, "it was not measured"
    assert (found["games of self-play"], found["hours"]) == (30, 1.0)


def test_a_game_of_ones_own_has_no_right_guesses_to_compare(tmp_path: Path) -> None:
    line = HeldOutLine("eval-spag-1", "mine.py:Game", 1, HeldOutReport(4, 0, 0, 0, 0, could_have_known=0.3))
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"time": 1.0, "kind": "held_out", **line.values()}) + "\n")
    play = PlayLine("eval-spag-1", "mine.py:Game", 1, 30, 60, 99, 1.0, 30.0, 99.0, {}).values()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"time": 1.0, "kind": "play", **play}) + "\n")
    assert figures_of(tmp_path) == {"could have known": 0.3, "hours": 0.0}


def test_a_score_is_that_of_the_report_where_words_were_not_played_equally_often(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", {"river": (2, 2), "cat": (0, 0)})
    more = [
        replace(match, games=match.games + match.games[:1] * 3)  # river five times, cat twice
        for match in read_matches(folder / "matches.json")
        if match.attacker != match.defender
    ]
    write_matches(folder / "matches.json", more)
    told = figures_of(folder)["score against imitated"]
    assert told == score([more], "spag-2", "imitated").value == 5 / 7


def test_exact_figures_of_a_solved_game_are_among_them(tmp_path: Path) -> None:
    assert 0 < figures_of(make_kuhn_run(tmp_path / "kuhn"))["nash_conv"] < 1


def test_guests_repeated_steps_pauses_and_numbers_that_are_none(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "run", {"river": (2, 2), "cat": (1, 1), "lamp": (2, 0), "stone": (0, 0)})
    matches = read_matches(folder / "matches.json")
    guest = Match("strong", "imitated", matches[0].games), Match("imitated", "strong", matches[1].games)
    write_matches(folder / "matches.json", [*matches, *guest])
    told = figures_of(folder)
    assert told["score against imitated"] == 0.5
    assert "score against spag-2" not in told, "a guest is no stage"
    with (folder / "metrics.jsonl").open("a") as file:
        for line in (
            {"kind": "resumed", "time": 90_000.0, "checkpoint": "4-spag-2", "stage": "spag-2", "version": 2},
            {"kind": "step", "time": 90_001.0, "policy": "policy", "stage": "spag-2", "step": 2, "loss": None},
            {"kind": "something new", "time": 90_002.0, "loss": 1.0},
        ):
            file.write(json.dumps(line) + "\n")
    again = figures_of(folder)
    assert again["entropy of the last stage"] == 1.0, "the second step was taken again, and it has none"
    assert again["hours"] == pytest.approx(1.0, abs=0.01), "without the pause"
    assert last_values(folder, ["step/loss"]) == {"step/loss": 0.5}, "the last one that is a number"


def test_policies_and_games_are_told_apart(tmp_path: Path) -> None:
    folder = make_two_games_run(tmp_path / "run")
    found = figures_of(folder)
    assert {"taboo: score against base", "kuhn: score against base", "kuhn: nash_conv"} <= set(found)
    steps = [
        StepLine(f"spag-1-{role}", str(role), StepReport(1, kl=kl)).values() | {"kind": "step", "time": 1.0}
        for role, kl in zip(Role, (0.1, 0.9), strict=True)
    ]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in steps))
    of_policies = {name: value for name, value in figures_of(folder).items() if "kl" in name}
    assert of_policies == {"attacker: kl of the last stage": 0.1, "defender: kl of the last stage": 0.9}


def test_two_runs_are_compared_on_the_words_that_both_played(two: tuple[Path, Path]) -> None:
    (told,) = paired(*two)
    # river 1 - 0.5, cat 0.5 - 0, lamp 0.5 - 0.25; stone was played by one alone.
    pair = f"spag-2 of {two[0]} minus spag-2 of {two[1]}"
    assert told == f"score against imitated, {pair}, on the 3 scenarios that both played: +0.417", "too few words"


def test_the_difference_of_two_runs_has_an_interval_from_five_words_on_that_differ(tmp_path: Path) -> None:
    won = {"river": (2, 2), "cat": (1, 1), **dict.fromkeys(MORE, (1, 2))}
    less = run_folder(tmp_path / "less", dict.fromkeys(won, (1, 1)))
    mean, low, high = interval([0.5, 0.0, 0.25, 0.25, 0.25])
    assert paired(run_folder(tmp_path / "more", won), less)[0].endswith(f": {mean:+.3f} [{low:+.3f}, {high:+.3f}]")
    assert paired(run_folder(tmp_path / "same", dict.fromkeys(won, (2, 2))), less)[0].endswith("played: +0.500")


def test_a_player_is_not_compared_with_its_games_against_itself(two: tuple[Path, Path]) -> None:
    """Those score one half, whoever it is."""
    first, second = two
    games = tuple(Game(word, Outcome.ATTACKER_WINS, 4) for word in WORDS)
    longer = [Match("spag-3", "spag-2", games), Match("spag-2", "spag-3", games), Match("spag-3", "spag-3", games)]
    write_matches(first / "matches.json", [*read_matches(first / "matches.json"), *longer])
    assert paired(first, second) == paired(second, first) == []


def test_of_a_stream_the_last_tenth_of_the_steps_counts(tmp_path: Path) -> None:
    lines = [StepLine("spag-1", "policy", StepReport(step, entropy=float(step))).values() for step in range(1, 101)]
    lines[:0] = [StepLine("imitated", "policy", StepReport(step, entropy=999.0)).values() for step in range(1, 301)]
    found = [streamed()[0], *({"kind": "step", "time": 1.0, **each} for each in lines)]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in found))
    assert figures_of(tmp_path)["entropy of the last stage"] == 95.5


def test_names_are_what_runs_do_not_have_in_common() -> None:
    assert told_apart_paths([Path("/runs/a/seed-1"), Path("/runs/a/seed-2")]) == ["seed-1", "seed-2"]
    assert told_apart_paths([Path("/tmp/one")]) == ["/tmp/one"]
    assert told_apart_paths([Path("a/x"), Path("b/x")]) == ["a/x", "b/x"]


def test_the_interval_of_a_mean_is_students(tmp_path: Path) -> None:
    mean, low, high = interval([1.0, 2.0, 3.0])
    assert (mean, high - mean) == (2.0, pytest.approx(4.302653 / math.sqrt(3)))
    assert mean - low == pytest.approx(high - mean)
    assert interval([0.5]) == interval([0.5, 0.5]) == (0.5, -math.inf, math.inf), "two that agree by chance"


def test_the_command_prints_a_table_with_short_names(two: tuple[Path, Path]) -> None:
    found = CliRunner().invoke(app, ["compare", *map(str, two)], env={"COLUMNS": "160"})
    assert found.exit_code == 0, found.output
    lines = found.output.splitlines()
    assert lines[1].split() == ["seed-1", "seed-2", "mean", "[95", "%]"]
    (score,) = [line for line in lines if line.startswith(" score against imitated")]
    assert score.split()[3:6] == ["0.5", "0.25", "0.375"]
    assert "on the 3 scenarios that both played" in found.output
    asked = CliRunner().invoke(app, ["compare", *map(str, two), "--metric", "step/loss"], env={"COLUMNS": "160"})
    assert "step/loss" in asked.output
    assert "0.6 [-0.6706, 1.871]" in asked.output


def test_what_is_no_run_or_no_metric_is_refused(two: tuple[Path, Path], tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no run folder, or nothing was measured in it yet"):
        figures_of(tmp_path)
    with pytest.raises(InputError, match="has no step/los; did you mean `step/loss`"):
        last_values(two[0], ["step/los"])
    found = CliRunner().invoke(app, ["compare", str(two[0]), str(two[0])])
    assert "named twice" in str(found.exception)

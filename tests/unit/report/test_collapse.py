"""Collapse: figures, their intervals by hand, and when they are an alarm."""

import json
import math
import random
from pathlib import Path

import pytest

from spag_ray.game.rules import Outcome
from spag_ray.results.collapse import Change, Figure, figures_of, judge, read_learned
from spag_ray.results.game_names import GameNames
from spag_ray.results.lines import CollapseLine, StepLine, StepReport
from spag_ray.results.matches import Game, Match

NOTHING: dict[str, list[float]] = {}


def match(attacker: str, defender: str, **outcomes: int) -> Match:
    games = [Game("river", Outcome[name], 4) for name, count in outcomes.items() for _ in range(count)]
    return Match(attacker, defender, tuple(games))


def shares(*ties: int) -> list[tuple[str, dict[str, Figure]]]:
    """A history of stages with so many ties in 40 games each."""
    return [(f"spag-{n}", {"ties": Figure.of_share(count, 40, rises=True)}) for n, count in enumerate(ties)]


def said(*ties: int) -> list[tuple[str, bool]]:
    """(stage, whether it is an alarm or the end of one), in the order in which a run comes to them."""
    history = shares(*ties)
    judged = [(history[n][0], judge(history[: n + 1])) for n in range(len(history))]
    return [(stage, change.is_alarm) for stage, found in judged for change in found.changes]


def test_shares_have_the_wilson_interval() -> None:
    figure = Figure.of_share(8, 10, rises=True)
    assert (figure.value, round(figure.low, 3), round(figure.high, 3)) == (0.8, 0.49, 0.943)
    for points in (0, 7, 40):
        whole = Figure.of_share(points, 40, rises=True)
        assert whole.low <= whole.value <= whole.high, "also where floats are not exact"


def test_the_figures_of_a_stage() -> None:
    own = match("spag-1", "spag-1", TIED=10, ATTACKER_BREACH=3, DEFENDER_BREACH=5, DEFENDER_WINS=16, ATTACKER_WINS=6)
    attacks = match("spag-1", "base", ATTACKER_WINS=6, TIED=4)  # 6 + 2 points of 10
    defends = match("base", "spag-1", DEFENDER_WINS=1, ATTACKER_BREACH=1, ATTACKER_WINS=8)  # 2 of 10
    found = figures_of(
        "spag-1", [own, attacks, defends], ["base", "imitated"], {"policy": [2.0, 1.0, 3.0]}, GameNames()
    )
    values = {name: (figure.value, figure.rises) for name, figure in found.items()}
    assert values == {
        "ties": (0.25, True),
        "breaches": (0.2, True),
        "right guesses": (0.4, False),
        "entropy": (2.0, False),
        "score against base": (0.5, False),
    }
    assert (found["entropy"].low, found["entropy"].high) == (0.0, 4.0), "the standard deviation is 1"


def test_what_is_not_there_is_no_figure() -> None:
    own = match("imitated", "imitated", TIED=4)
    one_seat = match("imitated", "base", TIED=4)
    found = figures_of("imitated", [own, one_seat], ["base", "imitated"], {"policy": [1.0, math.nan, 2.0]}, GameNames())
    assert found.keys() == {"ties", "breaches", "right guesses"}
    assert figures_of("spag-1", [], ["base"], NOTHING, GameNames()) == {}
    two = figures_of("spag-1", [], [], {"attacker": [1.0, 1.0, 1.0], "defender": [2.0, 2.0, 2.0]}, GameNames())
    assert {k: f.value for k, f in two.items()} == {"entropy of the attacker": 1.0, "entropy of the defender": 2.0}


def test_another_game_has_its_own_names_of_seats_and_no_right_guesses() -> None:
    own = match("spag-1", "spag-1", TIED=10, DEFENDER_WINS=16)
    entropies = {policy: [1.0, 1.0, 1.0] for policy in ("policy", "attacker", "defender")}
    found = figures_of("spag-1", [own], [], entropies, GameNames("kuhn", ("first", "second"), guesses=False))
    assert list(found) == ["ties", "breaches", "entropy", "entropy of the first", "entropy of the second"]


def test_two_stages_outside_are_an_alarm_and_one_is_none() -> None:
    # 8 of 40: 0.105 to 0.348; 16: 0.263 to 0.554; 17: 0.285 to 0.578. The difference may be 0.202 and 0.204.
    assert said(8, 17) == said(8, 17, 16) == said(8, 17, 9, 17) == []
    assert said(8, 17, 17) == [("spag-2", True)]
    assert said(8, 17, 40, 40, 40) == [("spag-2", True)], "said once"
    assert said(30, 8, 1) == [], "fewer ties are no harm"


def test_a_jump_that_stays_is_an_alarm_although_it_grows_no_worse() -> None:
    assert said(8, 40, 40) == [("spag-2", True)]


def test_the_alarm_ends_inside_the_interval_that_was_left() -> None:
    assert said(8, 30, 36, 20, 17, 16, 8) == [("spag-2", True), ("spag-5", False)]
    assert judge(shares(8, 30, 36, 17)).alarms == ("ties",)
    assert judge(shares(8, 30, 36, 16)).alarms == ()
    # From then on the newest stage counts, with 16 of 40.
    assert said(8, 30, 36, 16, 24, 24) == [("spag-2", True), ("spag-3", False)]
    (change,) = judge(shares(8, 30, 36)).changes
    low, high = Figure.of_share(8, 40, rises=True).bounds_of(Figure.of_share(36, 40, rises=True))
    assert change == Change("ties", True, 0.9, low, high, "spag-0")
    assert (round(low, 3), round(high, 3)) == (0.087, 0.397)


@pytest.mark.parametrize(
    ("rises", "worse", "better"), [(True, (30, 36), (1, 0)), (False, (1, 0), (30, 36))], ids=["rises", "falls"]
)
def test_only_the_wrong_direction_counts(rises: bool, worse: tuple[int, int], better: tuple[int, int]) -> None:
    def alarms(counts: tuple[int, ...]) -> tuple[str, ...]:
        figures = [Figure.of_share(count, 40, rises) for count in (10, *counts)]
        return judge([(f"spag-{n}", {"it": figure}) for n, figure in enumerate(figures)]).alarms

    assert alarms(worse) == ("it",)
    assert alarms(better) == ()


def test_entropy_falls_out_of_two_standard_deviations_of_its_steps() -> None:
    def stage(*values: float) -> dict[str, Figure]:
        return {"entropy": Figure.of_steps(values)}

    first = stage(2.9, 3.0, 3.1)  # 2.8 to 3.2
    assert judge([("spag-1", first), ("spag-2", stage(2.8, 2.9, 2.9)), ("spag-3", stage(2.8, 2.9, 2.9))]).alarms == ()
    fallen = stage(2.5, 2.0, 1.5)
    assert judge([("spag-1", first), ("spag-2", fallen), ("spag-3", fallen)]).alarms == ("entropy",)


def test_a_stage_without_the_figure_neither_raises_nor_ends_an_alarm() -> None:
    good, bad = shares(8)[0][1], shares(40)[0][1]
    history = [("spag-1", good), ("spag-2", bad), ("spag-3", {}), ("spag-4", bad)]
    assert judge(history[:3]).alarms == ()
    assert judge(history).alarms == ("ties",)
    assert judge([*history, ("spag-5", {})]) == judge([*history[:2], ("spag-4", bad), ("spag-5", {})])
    assert judge([]).alarms == ()


def test_weights_that_stay_the_same_raise_few_alarms_in_each_figure_and_some_in_a_long_run() -> None:
    """As docs/self_play.md says."""
    chance = random.Random(1)
    shares = {"ties": 0.3, "breaches": 0.1, "right guesses": 0.25, "score": 0.5}

    def stage() -> dict[str, Figure]:
        counts = {name: sum(chance.random() < share for _ in range(80)) for name, share in shares.items()}
        return {name: Figure.of_share(count, 80, rises=name in ("ties", "breaches")) for name, count in counts.items()}

    num_alarms = []  # of each run, which has ten rounds
    for _ in range(150):
        history = [(f"spag-{number}", stage()) for number in range(11)]
        judged = [judge(history[:end]).changes for end in range(1, 12)]
        num_alarms.append(sum(change.is_alarm for changes in judged for change in changes))
    assert 0.001 < sum(num_alarms) / (150 * 10 * len(shares)) < 0.006
    assert 0.05 < sum(map(bool, num_alarms)) / 150 < 0.2


def test_entropies_are_of_the_steps_that_count_and_alarms_are_read_back(tmp_path: Path) -> None:
    def step(stage: str, number: int, entropy: float, policy: str = "policy") -> StepLine:
        return StepLine(stage, policy, StepReport(number, entropy=entropy))

    alarm = CollapseLine("spag-2", "ties", True, 0.9, 0.1051, 0.3476, "imitated", "mix", 0.25)
    lines = [
        *(step("spag-1", number, 1.0) for number in (1, 2, 3, 4)),
        *(step("spag-1", number, 2.0) for number in (3, 4)),  # resumed from a checkpoint after its second step
        *(step("spag-2", number, 3.0) for number in (1, 2, 3)),
        step("spag-2", 1, 4.0),  # was restarted, with fewer games
        step("spag-3-attacker", 1, 5.0, "attacker"),
        step("spag-3-defender", 1, 6.0, "defender"),
        alarm,
    ]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps({"time": 1.0, "kind": line.kind, **line.values()}) + "\n" for line in lines))
    learned, found = read_learned(path)
    assert learned == {
        "spag-1": {"policy": [1.0, 1.0, 2.0, 2.0]},
        "spag-2": {"policy": [4.0]},
        "spag-3": {"attacker": [5.0], "defender": [6.0]},
    }
    assert found == [alarm]
    assert str(alarm) == "spag-2: ties 0.90, the second stage outside 0.11 to 0.35, which chance allows after imitated"
    assert read_learned(tmp_path / "nothing.jsonl") == ({}, [])

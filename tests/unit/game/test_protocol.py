"""Rulings of a game, and the verdicts that they become."""

from collections.abc import Sequence
from typing import Any

import pytest

from spag_ray.errors import InputError
from spag_ray.game.game_form import verdict_of
from spag_ray.game.protocol import (
    Game,
    Hides,
    History,
    Message,
    Ordered,
    Ruling,
    Scripted,
    Solved,
    breach,
    seat_of,
    seat_to_move,
    seats_of,
    tie,
    win,
)
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict


class Told:
    """A game whose last turn says how it is ruled."""

    seats = ("one", "two")
    max_turns = 2
    is_exhaustive = True
    rulings: dict[str, Ruling] = {}  # noqa: RUF012

    def scenarios(self) -> Sequence[str]:
        return ["only"]

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        return [{"role": "user", "content": scenario}]

    def rule(self, history: History, scenario: str) -> Ruling | None:
        return self.rulings.get(history[-1])


def told(ruling: Ruling) -> Told:
    game = Told()
    game.rulings = {"end": ruling}
    return game


@pytest.mark.parametrize("seat", [0, 1])
def test_a_win_pays_one_to_the_winner_and_costs_the_other_one(seat: int) -> None:
    found = win(seat)
    assert found.outcome.winner is (Role.ATTACKER, Role.DEFENDER)[seat]
    assert found.payoffs is not None
    assert (found.payoffs[seat], found.payoffs[1 - seat]) == (1.0, -1.0)
    assert (found.end_reason, found.reason, found.span) == ("won", "won", None)
    given = win(seat, "mate", (0.5, -0.25), (1, 3), "mate in two")
    assert (given.payoffs, given.end_reason, given.span, given.reason) == ((0.5, -0.25), "mate", (1, 3), "mate in two")


@pytest.mark.parametrize("seat", [0, 1])
def test_a_breach_costs_its_seat_one_and_teaches_the_other_nothing(seat: int) -> None:
    found = breach(seat)
    assert found.outcome.breaker is (Role.ATTACKER, Role.DEFENDER)[seat]
    assert found.outcome.winner is None
    assert found.payoffs is not None
    assert (found.payoffs[seat], found.payoffs[1 - seat]) == (-1.0, None)
    assert found.end_reason == "illegal move"
    assert breach(seat, payoffs=(-2.0, 2.0)).payoffs == (-2.0, 2.0)


def test_a_tie_pays_nothing_unless_it_says_so() -> None:
    assert tie().payoffs == (0.0, 0.0)
    assert tie("repetition", (-0.1, -0.1)).payoffs == (-0.1, -0.1)
    assert tie("repetition").reason == "repetition"


@pytest.mark.parametrize("length", [1, 2, 3])
def test_a_verdict_keeps_the_ruling_and_points_at_the_last_turn(length: int) -> None:
    history = [*["go on"] * (length - 1), "end"]
    found = verdict_of(told(win(1, "mate", (-0.5, 0.5), (1, 3), "mate in two")), history, "only")
    assert found == Verdict(Outcome.DEFENDER_WINS, "mate", length, "mate in two", length - 1, (1, 3), (-0.5, 0.5))


def test_without_a_span_the_whole_last_turn_decided_also_an_empty_one() -> None:
    game = told(breach(0))
    game.rulings[""] = breach(1)
    found, empty = verdict_of(game, ["end"], "only"), verdict_of(game, ["go on", ""], "only")
    assert found is not None
    assert found.span == (0, 3)
    assert empty is not None
    assert (empty.turn, empty.span, empty.payoffs) == (1, (0, 0), (None, -1.0))


def test_nothing_decided_a_tie() -> None:
    found = verdict_of(told(tie("repetition", (0.1, 0.1))), ["go on", "end"], "only")
    assert found == Verdict(Outcome.TIED, "repetition", 2, "repetition", None, None, (0.1, 0.1))


def test_a_game_continues_until_its_turns_run_out_and_is_tied_then() -> None:
    game = Told()
    for length in (1, 2, 3):
        assert verdict_of(game, ["go on"] * length, "only") is None
    found = verdict_of(game, ["go on"] * 4, "only")
    assert found is not None
    assert (found.outcome, found.end_reason, found.payoffs) == (Outcome.TIED, EndReason.UNDECIDED, (0.0, 0.0))
    assert (found.turn, found.span, found.length) == (None, None, 4)
    assert found.reason == "no turn of the 4 read decided the game"


def test_a_ruling_on_the_last_possible_turn_counts() -> None:
    found = verdict_of(told(win(1)), ["go on", "go on", "go on", "end"], "only")
    assert found is not None
    assert found.outcome is Outcome.DEFENDER_WINS


FAULTY: dict[str, Any] = {
    "rule returns 'won'; return win(...), breach(...), tie(...) or None": "won",
    "rule returns Ruling(outcome='seat 1 wins'": Ruling("seat 1 wins", "won", "won"),  # type: ignore[arg-type]
    "a payoff is -3.0; payoffs are numbers from -2 to 2": win(1, payoffs=(-3.0, 3.0)),
    "the payoffs are None": Ruling(Outcome.TIED, "tied", "tied"),
    "seat 1 is said to have broken the rules, but seat 0 moved last": breach(1),
    "the span is (0, 9), but the last turn has 3 characters": win(0, span=(0, 9)),
}


@pytest.mark.parametrize("said", FAULTY)
def test_a_ruling_with_a_fault_is_refused_in_one_line_and_not_trained_on(said: str) -> None:
    with pytest.raises(InputError) as caught:
        verdict_of(told(FAULTY[said]), ["end"], "only")
    assert str(caught.value).startswith(f"Told.rule: {said}")
    assert str(caught.value).endswith("(scenario 'only', history ['end']); mend the game (docs/games.md)")
    assert "\n" not in str(caught.value)


def test_seats_alternate_from_the_attackers() -> None:
    assert [seat_of(role) for role in Role] == [0, 1]
    assert [seat_to_move(Told(), ["x"] * length, "only") for length in range(4)] == [0, 1, 0, 1]
    assert seats_of(Told(), ["x"] * 3, "only") == [0, 1, 0]


@pytest.mark.parametrize(
    ("protocol", "part"),
    [(Scripted, "scripted"), (Ordered, "to_move"), (Hides, "hidden"), (Solved, "decisions measure average")],
)
def test_a_game_says_by_its_methods_what_else_it_can_do(protocol: Any, part: str) -> None:
    assert isinstance(Told(), Game)
    assert not isinstance(Told(), protocol)
    assert isinstance(type("More", (Told,), dict.fromkeys(part.split(), print))(), protocol)

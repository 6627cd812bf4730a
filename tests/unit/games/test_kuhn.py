"""Kuhn poker by hand: every deal, every line of play, what each seat reads."""

import random
from itertools import permutations

import pytest

from spag_ray.game.game_form import verdict_of
from spag_ray.game.protocol import Game, Hides, Scripted, Solved
from spag_ray.game.renderer import checked_messages
from spag_ray.game.rules import Outcome
from spag_ray.games.kuhn import CARDS, DEALS, HISTORIES, KuhnPoker, legal_actions

GAME = KuhnPoker()
# What the first seat gets with the higher card and with the lower one, by line of play.
CHIPS = {
    ("check", "check"): (1, -1),
    ("bet", "fold"): (1, 1),
    ("bet", "call"): (2, -2),
    ("check", "bet", "fold"): (-1, -1),
    ("check", "bet", "call"): (2, -2),
}
ENDS = {"check": "showdown after checks", "fold": "fold", "call": "showdown after a call"}


def test_it_has_every_part_of_the_protocol() -> None:
    assert isinstance(GAME, Game)
    assert isinstance(GAME, Scripted)
    assert isinstance(GAME, Hides)
    assert isinstance(GAME, Solved)


def test_every_deal_is_there_once_and_none_is_held_out() -> None:
    assert sorted(GAME.scenarios()) == sorted("".join(deal) for deal in permutations("JQK", 2))
    assert len(DEALS) == 6
    assert GAME.is_exhaustive


@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("line", CHIPS)
def test_every_line_of_play_pays_what_the_rules_say(line: tuple[str, ...], deal: str) -> None:
    is_first_higher = CARDS.index(deal[0]) > CARDS.index(deal[1])
    first = CHIPS[line][0 if is_first_higher else 1]
    for length in range(1, len(line)):
        assert GAME.rule(line[:length], deal) is None, "the game continues"
    found = GAME.rule(line, deal)
    assert found is not None
    assert found.payoffs == (first, -first)
    assert found.outcome is (Outcome.ATTACKER_WINS if first > 0 else Outcome.DEFENDER_WINS)
    assert found.end_reason == ENDS[line[-1]]
    assert len(line) <= 2 * GAME.max_turns


def test_these_are_all_lines_of_play() -> None:
    found: list[tuple[str, ...]] = []
    open_lines: list[tuple[str, ...]] = [()]
    while open_lines:
        line = open_lines.pop()
        assert line in HISTORIES
        for action in legal_actions(line):
            after = (*line, action)
            (open_lines if GAME.rule(after, "JQ") is None else found).append(after)
    assert sorted(found) == sorted(CHIPS)


@pytest.mark.parametrize(
    ("history", "illegal"),
    [
        ((), "call"),
        ((), "fold"),
        ((), "Bet"),
        ((), "bet."),
        ((), "check or bet"),
        ((), ""),
        (("check",), "fold"),
        (("bet",), "check"),
        (("bet",), "raise"),
        (("check", "bet"), "bet"),
    ],
)
def test_an_illegal_reply_costs_the_most_that_play_can_lose(history: tuple[str, ...], illegal: str) -> None:
    found = GAME.rule([*history, illegal], "KJ")
    assert found is not None
    seat = len(history) % 2
    assert found.outcome is (Outcome.ATTACKER_BREACH if seat == 0 else Outcome.DEFENDER_BREACH)
    assert found.payoffs == ((-2.0, 2.0) if seat == 0 else (2.0, -2.0))
    assert found.end_reason == "illegal action"
    assert found.reason == f"{' or '.join(legal_actions(history))} was expected"
    verdict = verdict_of(GAME, [*history, illegal], "KJ")
    assert verdict is not None
    assert (verdict.turn, verdict.span) == (len(history), (0, len(illegal)))


@pytest.mark.parametrize("deal", DEALS)
@pytest.mark.parametrize("history", HISTORIES)
def test_a_seat_reads_its_card_its_choice_and_what_was_said(history: tuple[str, ...], deal: str) -> None:
    names = {"J": "Jack", "Q": "Queen", "K": "King"}
    seat = len(history) % 2
    messages = checked_messages(GAME, seat, history, deal)
    choice = " or ".join(legal_actions(history))
    assert messages[-1]["content"].endswith(f"You have the {names[deal[seat]]}: {choice}?")
    heard = [line for each in messages[0::2] for line in each["content"].splitlines() if line.startswith("The other")]
    assert heard == [f"The other player: {text}" for index, text in enumerate(history) if index % 2 != seat]
    assert [each["content"] for each in messages[1::2]] == list(history[seat::2])


@pytest.mark.parametrize("history", HISTORIES)
def test_what_a_seat_reads_depends_on_its_own_card_and_not_on_the_others(history: tuple[str, ...]) -> None:
    seat = len(history) % 2
    read = {deal: checked_messages(GAME, seat, history, deal) for deal in DEALS}
    for one in DEALS:
        for other in DEALS:
            assert (read[one] == read[other]) == (one[seat] == other[seat])


@pytest.mark.parametrize("deal", DEALS)
def test_what_is_hidden_from_a_seat_is_what_the_other_one_reads(deal: str) -> None:
    for seat in (0, 1):
        [text] = GAME.hidden(seat, deal)
        history = ["check"] * seat
        other_history = ["check"] * (1 - seat)
        assert text not in GAME.messages(seat, history, deal)[0]["content"]
        assert text in GAME.messages(1 - seat, other_history, deal)[0]["content"]


def test_scripted_seats_choose_legal_actions_evenly_by_their_generator_alone() -> None:
    for history in HISTORIES:
        draws = [GAME.scripted(0, history, "KJ", random.Random(seed)) for seed in range(400)]
        assert draws == [GAME.scripted(1, history, "JK", random.Random(seed)) for seed in range(400)]
        for action in legal_actions(history):
            assert 140 < draws.count(action) < 260
        assert set(draws) == set(legal_actions(history))


def test_a_decision_is_an_information_set_with_a_deal_that_has_its_card() -> None:
    decisions = GAME.decisions()
    assert len(decisions) == 12
    seen = set()
    for decision in decisions:
        seat = len(decision.history) % 2
        assert decision.scenario in DEALS
        assert decision.replies == legal_actions(decision.history)
        seen.add((decision.scenario[seat], decision.history))
    assert len(seen) == 12

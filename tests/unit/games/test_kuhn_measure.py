"""Exact figures of policies of Kuhn poker, against values worked out by hand and against another computation."""

import itertools
import json
import math
import random
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest

from spag_ray.game.game_tree import uniform as uniform_at
from spag_ray.games.kuhn import CARDS, DEALS, HISTORIES, KuhnPoker, legal_actions
from tests.support.kuhn_strategy import (
    INFORMATION_SETS,
    InformationSet,
    Strategy,
    in_order,
    optimum,
    renormalised,
    strategy_of,
    uniform,
)
from tests.support.kuhn_strategy import averaged as averaged_otherwise
from tests.support.kuhn_strategy import measure as measured_otherwise
from tests.support.kuhn_strategy import value as value_otherwise

GAME = KuhnPoker()
ALPHAS = (0, 1 / 9, 1 / 6, 0.25, 1 / 3)
NEVER_BET = {"check": 1.0, "bet": 0.0}
RECORDS = Path(__file__).resolve().parents[3] / "docs" / "kuhn"


def measure(strategy: Strategy) -> Mapping[str, float]:
    """The game's own figures, which are those of the other computation."""
    found = GAME.measure(in_order(strategy))
    assert list(found) == list(measured_otherwise(strategy))
    assert found == pytest.approx(measured_otherwise(strategy), abs=1e-12, rel=0)
    return found


def nash_conv(strategy: Strategy) -> float:
    return measure(strategy)["nash_conv"]


def value(first: Strategy, second: Strategy) -> float:
    found = GAME.value_between(in_order(first), in_order(second))
    assert found == pytest.approx(value_otherwise(first, second), abs=1e-12, rel=0)
    return found


def averaged(strategies: Sequence[Strategy]) -> dict[InformationSet, dict[str, float]]:
    found = strategy_of(GAME.average([in_order(each) for each in strategies]))
    for place, shares in averaged_otherwise(strategies).items():
        assert found[place] == pytest.approx(shares, abs=1e-12, rel=0)
    return found


def changed(strategy: Strategy, place: InformationSet, shares: Mapping[str, float]) -> dict[InformationSet, Any]:
    return {**strategy, place: shares}


def drawn(seed: int, legal: float = 1.0) -> dict[InformationSet, dict[str, float]]:
    """A strategy at random, whose legal actions have this probability together."""
    rng = random.Random(seed)
    found = {}
    for place in INFORMATION_SETS:
        share = rng.random()
        one, other = legal_actions(place[1])
        found[place] = {one: legal * share, other: legal * (1 - share)}
    return found


def test_decisions_are_in_the_order_that_records_have() -> None:
    asked = [(each.scenario[len(each.history) % 2], each.history) for each in GAME.decisions()]
    assert asked == list(INFORMATION_SETS)
    assert uniform_at(GAME.decisions()) == in_order(uniform())


def test_recorded_probabilities_have_the_figures_that_were_recorded_with_them() -> None:
    files = sorted(RECORDS.rglob("*.json"))
    assert files
    for each in json.loads(files[0].read_text())["spag"]:
        policy = [
            {reply: each["probabilities"].get(f"{number}/{reply}", 0.0) for reply in decision.replies}
            for number, decision in enumerate(GAME.decisions())
        ]
        assert measure(strategy_of(policy)) == pytest.approx(each["figures"], abs=1e-5, rel=0)


def test_uniform_play_gives_away_eleven_twelfths() -> None:
    found = measure(uniform())
    assert Fraction(found["nash_conv"]).limit_denominator(1000) == Fraction(11, 12)
    assert found["value"] == pytest.approx(1 / 8)
    assert (found["illegal"], found["worst_illegal"], found["bluffs"], found["second_bluffs"]) == (0, 0, 0.5, 0.5)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_every_optimum_gives_nothing_away_and_loses_an_eighteenth_in_the_first_seat(alpha: float) -> None:
    found = measure(optimum(alpha))
    assert found["nash_conv"] == pytest.approx(0, abs=1e-12)
    assert found["legal_nash_conv"] == pytest.approx(0, abs=1e-12)
    assert found["value"] == pytest.approx(-1 / 18)
    assert (found["bluffs"], found["second_bluffs"]) == (pytest.approx(alpha), pytest.approx(1 / 3))


@pytest.mark.parametrize("king", [0.3, 1.0])
def test_a_king_bet_more_often_than_three_times_the_jack_is_no_optimum(king: float) -> None:
    assert nash_conv(changed(optimum(0), ("K", ()), {"check": 1 - king, "bet": king})) > 0.01


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_second_seat_that_never_bluffs_gives_away_a_ninth(alpha: float) -> None:
    """Then its bet after a check is the king's, so the queen may fold to it and the first seat may always check."""
    found = nash_conv(changed(optimum(alpha), ("J", ("check",)), NEVER_BET))
    assert Fraction(found).limit_denominator(1000) == Fraction(1, 9)


@pytest.mark.parametrize("alpha", ALPHAS)
def test_a_first_seat_that_never_bluffs_gives_away_a_sixth_of_alpha(alpha: float) -> None:
    """Its king still bets 3 alpha of the time; with alpha 0 never bluffing is the optimum."""
    found = nash_conv(changed(optimum(alpha), ("J", ()), NEVER_BET))
    assert found == pytest.approx(alpha / 6, abs=1e-12)


@pytest.mark.parametrize("legal", [1.0, 0.9, 0.3])
def test_best_responses_gain_at_least_what_any_policy_gains(legal: float) -> None:
    for seed in range(10):
        strategy = drawn(seed, legal)
        for other in (drawn(seed + 100), uniform(), optimum(0.2)):
            gained = value(other, strategy) - value(strategy, other)
            assert nash_conv(strategy) >= max(gained, 0) - 1e-12


def test_the_value_is_that_of_games_dealt_and_played_out() -> None:
    for seed in range(5):
        first, second = drawn(seed), drawn(seed + 50)
        assert value(first, second) == pytest.approx(sum(paid(first, second, deal) for deal in DEALS) / 6)


def paid(first: Strategy, second: Strategy, deal: str) -> float:
    """Chips of the first seat: each line of play by hand."""
    strategies, total = (first, second), 0.0
    lines = [("check", "check"), ("bet", "fold"), ("bet", "call"), ("check", "bet", "fold"), ("check", "bet", "call")]
    for line in lines:
        share = math.prod(strategies[i % 2][deal[i % 2], line[:i]][action] for i, action in enumerate(line))
        found = GAME.rule(line, deal)
        assert found is not None
        assert found.payoffs is not None
        total += share * (found.payoffs[0] or 0.0)
    return total


def test_illegal_replies_count_as_forfeits_and_renormalised_play_does_not_have_them() -> None:
    silent = {place: dict.fromkeys(legal_actions(place[1]), 0.0) for place in INFORMATION_SETS}
    found = measure(silent)
    assert found["value"] == -2, "the first seat always forfeits"
    assert found["nash_conv"] == 4, "either seat wins 2 by letting the other speak"
    assert (found["illegal"], found["worst_illegal"]) == (1, 1)
    assert found["legal_nash_conv"] == pytest.approx(11 / 12), "nothing legal is left, so uniform"
    assert (found["bluffs"], found["second_bluffs"]) == (0.5, 0.5)
    for legal in (0.5, 0.9):
        mixed, whole = drawn(3, legal), drawn(3)
        assert measure(mixed)["legal_nash_conv"] == pytest.approx(nash_conv(whole))
        assert measure(mixed)["illegal"] == pytest.approx(1 - legal)
        assert measure(mixed)["bluffs"] == pytest.approx(whole["J", ()]["bet"])
        assert nash_conv(mixed) > nash_conv(whole)


def test_one_place_with_illegal_mass_is_the_worst_and_a_twelfth_of_the_mean() -> None:
    found = measure(changed(optimum(0.2), ("Q", ("bet",)), {"call": 0.2, "fold": 0.3}))
    assert found["worst_illegal"] == pytest.approx(0.5)
    assert found["illegal"] == pytest.approx(0.5 / 12)
    legal = renormalised(changed(uniform(), ("Q", ("bet",)), {"call": 0.2, "fold": 0.3}))
    assert legal["Q", ("bet",)] == pytest.approx({"call": 0.4, "fold": 0.6})


def test_an_illegal_action_that_is_named_counts_as_one_that_is_not() -> None:
    mixed = drawn(4, 0.8)
    named = {place: {**shares, "raise": 0.2} for place, shares in mixed.items()}
    assert measure(named) == measure(mixed)


@pytest.mark.parametrize(
    ("shares", "said"),
    [
        ({"check": 0.8, "bet": 0.8}, "0.8, 'bet': 0.8}"),
        ({"check": -0.1, "bet": 0.8}, "-0.1, 'bet': 0.8}"),
        ({"check": math.nan, "bet": 0.8}, "nan, 'bet': 0.8}"),
    ],
)
def test_what_are_no_probabilities_is_refused(shares: Mapping[str, float], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        GAME.measure(in_order(changed(uniform(), ("K", ()), shares)))


def test_a_policy_without_all_decisions_is_refused() -> None:
    with pytest.raises(ValueError, match="shorter"):
        GAME.measure(in_order(uniform())[:5])


def test_a_sum_that_is_over_one_by_rounding_is_taken() -> None:
    found = measure(changed(uniform(), ("K", ()), {"check": 0.5, "bet": 0.5 + 5e-7}))
    assert found["illegal"] == 0


def reached(strategy: Strategy, card: str, history: Sequence[str]) -> float:
    seat = len(history) % 2
    return math.prod(strategy[card, tuple(history[:index])][history[index]] for index in range(seat, len(history), 2))


def test_an_average_plays_as_a_player_who_draws_one_policy_for_each_game() -> None:
    """Against any opponent the average has the mean value of its parts; the mean of probabilities has not."""
    parts = [drawn(seed) for seed in range(4)]
    mixed = averaged(parts)
    for opponent in (drawn(20), uniform(), optimum(0.1)):
        assert value(mixed, opponent) == pytest.approx(sum(value(part, opponent) for part in parts) / 4)
        assert value(opponent, mixed) == pytest.approx(sum(value(opponent, part) for part in parts) / 4)
    plain = {
        place: {action: sum(part[place][action] for part in parts) / 4 for action in legal_actions(place[1])}
        for place in INFORMATION_SETS
    }
    assert value(plain, optimum(0.1)) != pytest.approx(value(mixed, optimum(0.1)), abs=1e-6)
    for card, history in itertools.product(CARDS, HISTORIES):
        weights = [reached(part, card, history) for part in parts]
        for action in legal_actions(history):
            expected = sum(w * p[card, history][action] for w, p in zip(weights, parts, strict=True)) / sum(weights)
            assert mixed[card, history][action] == pytest.approx(expected)


def test_an_average_keeps_illegal_mass() -> None:
    found = averaged([drawn(1, 0.5), drawn(2, 1.0)])
    assert measure(found)["worst_illegal"] == pytest.approx(0.25)
    answers = found["K", ("check", "bet")]
    assert 1 - sum(answers.values()) < 0.25, "the legal policy comes here more often"


def test_where_no_policy_comes_the_average_is_their_mean_and_not_illegal() -> None:
    """With alpha 1/3 the first seat always bets the king, so it never answers a bet with it."""
    never = changed(optimum(1 / 3), ("K", ("check", "bet")), {"call": 0.5, "fold": 0.5})
    found = averaged([optimum(1 / 3), never])
    assert found["K", ("check", "bet")] == {"call": 0.75, "fold": 0.25}
    assert measure(found)["worst_illegal"] == pytest.approx(0, abs=1e-12)

"""Kuhn poker measured in another way than the product does (spag_ray/game/game_tree.py): every pure plan of a seat is
tried. Also the policies whose figures are known.

>>> round(nash_conv(uniform()) * 12, 9)
11.0
>>> best = optimum(alpha=1 / 3)
>>> abs(nash_conv(best)) < 1e-12, round(value(best, best) * 18, 9)
(True, -1.0)
"""

import itertools
from collections.abc import Mapping, Sequence
from typing import TypeAlias

from spag_ray.games.kuhn import CARDS, DEALS, FORFEIT, HISTORIES, KuhnPoker, legal_actions

InformationSet: TypeAlias = tuple[str, tuple[str, ...]]  # own card, what was said
Strategy: TypeAlias = Mapping[
    InformationSet, Mapping[str, float]
]  # both seats: {information set: {action: probability}}
INFORMATION_SETS: tuple[InformationSet, ...] = tuple(itertools.product(CARDS, HISTORIES))


def measure(strategy: Strategy) -> dict[str, float]:
    """What KuhnPoker.measure tells, by its names."""
    illegal = [max(0.0, 1 - _legal(strategy, place)) for place in INFORMATION_SETS]
    own = renormalised(strategy)
    return {
        "nash_conv": nash_conv(strategy),
        "legal_nash_conv": nash_conv(own),
        "value": value(strategy, strategy),
        "illegal": sum(illegal) / len(illegal),
        "worst_illegal": max(illegal),
        "bluffs": own["J", ()]["bet"],
        "second_bluffs": own["J", ("check",)]["bet"],
    }


def in_order(strategy: Strategy) -> list[Mapping[str, float]]:
    """The probabilities at KuhnPoker.decisions()."""
    return [strategy[place] for place in INFORMATION_SETS]


def strategy_of(probabilities: Sequence[Mapping[str, float]]) -> dict[InformationSet, dict[str, float]]:
    """The strategy with these probabilities at KuhnPoker.decisions()."""
    places = zip(INFORMATION_SETS, probabilities, strict=True)
    return {place: {action: found.get(action, 0.0) for action in legal_actions(place[1])} for place, found in places}


def nash_conv(strategy: Strategy) -> float:
    """best response of seat 0 against seat 1 + best response of seat 1 against seat 0 (the value itself cancels)."""
    return sum(best_response(strategy, seat) for seat in (0, 1))


def best_response(strategy: Strategy, seat: int) -> float:
    """The most that `seat` can get, in chips a game, against the strategy's other seat.

    Pure plans of a seat are few (2 actions in 6 information sets: 64), so all are tried.
    """
    places = [place for place in INFORMATION_SETS if len(place[1]) % 2 == seat]
    sign = 1 if seat == 0 else -1
    found = []
    for actions in itertools.product((0, 1), repeat=len(places)):
        plan = {place: {legal_actions(place[1])[choice]: 1.0} for place, choice in zip(places, actions, strict=True)}
        found.append(sign * (value(plan, strategy) if seat == 0 else value(strategy, plan)))
    return max(found)


def value(first: Strategy, second: Strategy) -> float:
    """Expected chips of the first seat, over the six deals."""
    return sum(_value((first, second), deal, ()) for deal in DEALS) / len(DEALS)


def _value(seats: Sequence[Strategy], deal: str, history: tuple[str, ...]) -> float:
    if history and (found := KuhnPoker().rule(history, deal)) is not None:
        assert found.payoffs is not None
        assert found.payoffs[0] is not None
        return found.payoffs[0]
    seat = len(history) % 2
    place = (deal[seat], history)
    forfeit = max(0.0, 1 - _legal(seats[seat], place)) * (-FORFEIT if seat == 0 else FORFEIT)
    shares = {action: seats[seat][place].get(action, 0.0) for action in legal_actions(history)}
    return forfeit + sum(share * _value(seats, deal, (*history, action)) for action, share in shares.items() if share)


def _legal(strategy: Strategy, place: InformationSet) -> float:
    return sum(strategy[place].get(action, 0.0) for action in legal_actions(place[1]))


def renormalised(strategy: Strategy) -> dict[InformationSet, dict[str, float]]:
    """The strategy without illegal replies; uniform where nothing is legal."""
    found = {}
    for place in INFORMATION_SETS:
        actions, total = legal_actions(place[1]), _legal(strategy, place)
        found[place] = {action: strategy[place].get(action, 0.0) / total if total else 0.5 for action in actions}
    return found


def averaged(strategies: Sequence[Strategy]) -> dict[InformationSet, dict[str, float]]:
    """The average of strategies as mixtures of whole policies: each information set weighted by how likely each
    policy's own actions reach it (as fictitious play averages). The plain mean where none of them does."""
    found: dict[InformationSet, dict[str, float]] = {}
    for card, history in INFORMATION_SETS:
        seat = len(history) % 2
        reach = []
        for strategy in strategies:
            share = 1.0
            for index in range(seat, len(history), 2):
                share *= strategy[card, history[:index]].get(history[index], 0.0)
            reach.append(share)
        if not any(reach):
            reach = [1.0] * len(strategies)
        total = sum(reach)
        found[card, history] = {
            action: sum(
                share * strategy[card, history].get(action, 0.0)
                for share, strategy in zip(reach, strategies, strict=True)
            )
            / total
            for action in legal_actions(history)
        }
    return found


def uniform() -> dict[InformationSet, dict[str, float]]:
    return {place: dict.fromkeys(legal_actions(place[1]), 0.5) for place in INFORMATION_SETS}


def optimum(alpha: float) -> dict[InformationSet, dict[str, float]]:
    """Kuhn's solutions, one for each `alpha` from 0 to 1/3: how often the first seat bets the jack."""
    bets = {
        ("J", ()): alpha,
        ("Q", ()): 0.0,
        ("K", ()): 3 * alpha,
        ("J", ("check",)): 1 / 3,
        ("Q", ("check",)): 0.0,
        ("K", ("check",)): 1.0,
    }
    calls = {
        ("J", ("bet",)): 0.0,
        ("Q", ("bet",)): 1 / 3,
        ("K", ("bet",)): 1.0,
        ("J", ("check", "bet")): 0.0,
        ("Q", ("check", "bet")): alpha + 1 / 3,
        ("K", ("check", "bet")): 1.0,
    }
    return {place: {"check": 1 - share, "bet": share} for place, share in bets.items()} | {
        place: {"call": share, "fold": 1 - share} for place, share in calls.items()
    }

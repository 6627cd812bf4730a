"""Kuhn poker: the smallest game in which bluffing is right, and one whose optimum is known (Kuhn, 1950).

Three cards, J < Q < K; each seat is dealt one, and pays 1 into the pot. An action is one word:

    the first seat: check or bet       the second, after a check: check (showdown for 1) or bet
    after a bet: call (showdown for 2) or fold (loses 1)

>>> KuhnPoker().rule(["bet", "fold"], "JK").payoffs
(1.0, -1.0)
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from spag_ray.game.protocol import Decision, History, Message, Ruling, breach, win

CARDS = "JQK"
NAMES = {"J": "Jack", "Q": "Queen", "K": "King"}
OPENING, ANSWER = ("check", "bet"), ("call", "fold")
HISTORIES: tuple[tuple[str, ...], ...] = ((), ("check",), ("bet",), ("check", "bet"))  # before a decision
FORFEIT = 2.0  # what an illegal reply loses: the most that can be lost by playing

_RULES = (
    "Kuhn poker with three cards: the King beats the Queen, and the Queen beats the Jack. Each player has one of them "
    "and one chip in the pot."
)


class KuhnPoker:
    """A scenario is a deal: the cards of the first and of the second seat, such as "KJ"."""

    seats = ("first", "second")
    max_turns = 2
    is_exhaustive = True

    def scenarios(self) -> Sequence[str]:
        return ["".join(deal) for deal in itertools.permutations(CARDS, 2)]

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        """The rules once; before each turn what the other player said, the own card, and what can be said."""
        messages: list[dict[str, str]] = []
        for index in range(seat, len(history) + 1, 2):
            heard = f"The other player: {history[index - 1]}\n" if index else ""
            choice = " or ".join(legal_actions(history[:index]))
            asked = f"{heard}{_dealt(scenario[seat])}: {choice}?"
            messages.append({"role": "user", "content": asked if messages else f"{_RULES}\n{asked}"})
            if index < len(history):
                messages.append({"role": "assistant", "content": history[index]})
        return messages

    def rule(self, history: History, scenario: str) -> Ruling | None:
        seat = (len(history) - 1) % 2
        *before, said = history
        if said not in legal_actions(before):
            payoffs = (-FORFEIT, FORFEIT) if seat == 0 else (FORFEIT, -FORFEIT)
            return breach(seat, "illegal action", payoffs, reason=f"{' or '.join(legal_actions(before))} was expected")
        if said == "bet" or (said == "check" and not before):
            return None
        if said == "fold":
            winner, stake, end = 1 - seat, 1.0, "fold"
        else:
            winner, stake = int(CARDS.index(scenario[1]) > CARDS.index(scenario[0])), 1.0 + (said == "call")
            end = "showdown after a call" if said == "call" else "showdown after checks"
        payoffs = (stake, -stake) if winner == 0 else (-stake, stake)
        return win(winner, end, payoffs, reason=f"{end}, {NAMES[scenario[0]]} against {NAMES[scenario[1]]}")

    def hidden(self, seat: int, scenario: str) -> Sequence[str]:
        return [_dealt(scenario[1 - seat])]

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        """A legal action at random, so that imitation teaches how to speak and not how to play."""
        return rng.choice(legal_actions(history))

    def decisions(self) -> Sequence[Decision]:
        """The 12 information sets, those of kuhn_strategy.INFORMATION_SETS."""
        found = []
        for card, history in itertools.product(CARDS, HISTORIES):
            other = CARDS[CARDS.index(card) - 1]
            deal = card + other if len(history) % 2 == 0 else other + card
            found.append(Decision(history, deal, legal_actions(history)))
        return found

    def measure(self, probabilities: Sequence[Mapping[str, float]]) -> Mapping[str, float]:
        from spag_ray.games.kuhn_strategy import measure, strategy_of

        return asdict(measure(strategy_of(probabilities)))

    def average(self, policies: Sequence[Sequence[Mapping[str, float]]]) -> Sequence[Mapping[str, float]]:
        from spag_ray.games.kuhn_strategy import averaged, strategy_of

        return list(averaged([strategy_of(each) for each in policies]).values())


def _dealt(card: str) -> str:
    return f"You have the {NAMES[card]}"


def legal_actions(history: History) -> tuple[str, str]:
    """The two actions after this history."""
    return ANSWER if "bet" in history else OPENING

"""Kuhn poker (kuhn_rules.py) in words: the smallest game in which bluffing is right, and one whose optimum is known
(Kuhn, 1950).

>>> KuhnPoker().messages(1, ["bet"], "JK")[-1]["content"].splitlines()[-2:]
['The other player: bet', 'You have the King: call or fold?']
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict

from spag_ray.game.protocol import Decision, History, Message, Ruling
from spag_ray.games.kuhn_rules import CARDS, DEALS, HISTORIES, NAMES, legal_actions, ruling
from spag_ray.games.kuhn_strategy import averaged, measure, strategy_of

# Short, so that little of a prompt beyond its first block of 32 tokens is computed again (docs/appendix/tables.md).
_RULES = "Kuhn poker, one chip each: the King beats the Queen, the Queen beats the Jack."


class KuhnPoker:
    """A scenario is a deal: the cards of the first and of the second seat, such as "KJ"."""

    seats = ("first", "second")
    max_turns = 2
    is_exhaustive = True

    def scenarios(self) -> Sequence[str]:
        return DEALS

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
        return ruling(history, scenario)

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
        return asdict(measure(strategy_of(probabilities)))

    def average(self, policies: Sequence[Sequence[Mapping[str, float]]]) -> Sequence[Mapping[str, float]]:
        return list(averaged([strategy_of(each) for each in policies]).values())


def _dealt(card: str) -> str:
    return f"You have the {NAMES[card]}"

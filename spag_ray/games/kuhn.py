"""Kuhn poker in words: the smallest game in which bluffing is right, and one whose optimum is known (Kuhn, 1950).

Three cards, J < Q < K; each seat is dealt one, and pays 1 into the pot. An action is one word:

    the first seat: check or bet       the second, after a check: check (showdown for 1) or bet
    after a bet: call (showdown for 2) or fold (loses 1)

>>> from spag_ray.game.game_tree import uniform
>>> game = KuhnPoker()
>>> game.messages(1, ["bet"], "JK")[-1]["content"].splitlines()[-2:]
['The other player: bet', 'You have the King: call or fold?']
>>> game.rule(["bet", "fold"], "JK").payoffs
(1.0, -1.0)
>>> round(game.measure(uniform(game.decisions()))["nash_conv"] * 12, 9)
11.0
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence

from spag_ray.game.game_tree import Policy, TreeSolved, renormalised
from spag_ray.game.protocol import Decision, History, Message, Ruling, breach, win, zero_sum

CARDS = "JQK"
NAMES = {"J": "Jack", "Q": "Queen", "K": "King"}
DEALS = tuple(first + second for first, second in itertools.permutations(CARDS, 2))
OPENING, ANSWER = ("check", "bet"), ("call", "fold")
HISTORIES: tuple[tuple[str, ...], ...] = ((), ("check",), ("bet",), ("check", "bet"))  # before a decision
FORFEIT = 2.0  # what an illegal reply loses: the most that can be lost by playing
# Short, so that little of a prompt beyond its first block of 32 tokens is computed again (docs/appendix/tables.md).
_RULES = "Kuhn poker, one chip each: the King beats the Queen, the Queen beats the Jack."


def legal_actions(history: History) -> tuple[str, str]:
    """The two actions after this history."""
    return ANSWER if "bet" in history else OPENING


class KuhnPoker(TreeSolved):
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
        seat = (len(history) - 1) % 2
        *before, said = history
        if said not in legal_actions(before):
            reason = f"{' or '.join(legal_actions(before))} was expected"
            return breach(seat, "illegal action", zero_sum(1 - seat, FORFEIT), reason=reason)
        if said == "bet" or (said == "check" and not before):
            return None
        if said == "fold":
            winner, stake, end = 1 - seat, 1.0, "fold"
        else:
            winner, stake = int(CARDS.index(scenario[1]) > CARDS.index(scenario[0])), 1.0 + (said == "call")
            end = "showdown after a call" if said == "call" else "showdown after checks"
        reason = f"{end}, {NAMES[scenario[0]]} against {NAMES[scenario[1]]}"
        return win(winner, end, zero_sum(winner, stake), reason=reason)

    def hidden(self, seat: int, scenario: str) -> Sequence[str]:
        return [_dealt(scenario[1 - seat])]

    def scripted(self, seat: int, history: History, scenario: str, rng: random.Random) -> str:
        """A legal action at random, so that imitation teaches how to speak and not how to play."""
        return rng.choice(legal_actions(history))

    def legal(self, history: History, scenario: str) -> Sequence[str]:
        return legal_actions(history)

    def order_of(self, decision: Decision) -> tuple[int, ...]:
        """By the card, then by what was said: as in the records of runs."""
        card = decision.scenario[len(decision.history) % 2]
        return CARDS.index(card), HISTORIES.index(tuple(decision.history))

    def measure(self, probabilities: Policy) -> Mapping[str, float]:
        """The figures of any tree, and how often the legal replies bet with the jack: `bluffs` of the first seat, and
        `second_bluffs` of the second after a check. At the optimum 0 to 1/3, and 1/3."""
        opening, after_check, *_ = self._tree.policy_of(probabilities)  # the jack is first
        return {
            **super().measure(probabilities),
            "bluffs": renormalised(opening)["bet"],
            "second_bluffs": renormalised(after_check)["bet"],
        }


def _dealt(card: str) -> str:
    return f"You have the {NAMES[card]}"

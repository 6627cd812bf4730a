"""The rules of Kuhn poker as pure functions: deals, actions, how a game ends.

Three cards, J < Q < K; each seat is dealt one, and pays 1 into the pot. An action is one word:

    the first seat: check or bet       the second, after a check: check (showdown for 1) or bet
    after a bet: call (showdown for 2) or fold (loses 1)

>>> ruling(["bet", "fold"], "JK").payoffs
(1.0, -1.0)
"""

from __future__ import annotations

import itertools

from spag_ray.game.protocol import History, Ruling, breach, win

CARDS = "JQK"
NAMES = {"J": "Jack", "Q": "Queen", "K": "King"}
DEALS = tuple(first + second for first, second in itertools.permutations(CARDS, 2))
OPENING, ANSWER = ("check", "bet"), ("call", "fold")
HISTORIES: tuple[tuple[str, ...], ...] = ((), ("check",), ("bet",), ("check", "bet"))  # before a decision
FORFEIT = 2.0  # what an illegal reply loses: the most that can be lost by playing


def legal_actions(history: History) -> tuple[str, str]:
    """The two actions after this history."""
    return ANSWER if "bet" in history else OPENING


def ruling(history: History, deal: str) -> Ruling | None:
    """The ruling on the last action; None if the game continues."""
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
        winner, stake = int(CARDS.index(deal[1]) > CARDS.index(deal[0])), 1.0 + (said == "call")
        end = "showdown after a call" if said == "call" else "showdown after checks"
    payoffs = (stake, -stake) if winner == 0 else (-stake, stake)
    return win(winner, end, payoffs, reason=f"{end}, {NAMES[deal[0]]} against {NAMES[deal[1]]}")

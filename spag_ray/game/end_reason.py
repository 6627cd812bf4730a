"""Why a game ended, as a value to count and to compare. A referee's reason in words is for people.

>>> EndReason("said the word"), str(EndReason.CONTEXT_FULL)
(<EndReason.SAID_WORD: 'said the word'>, 'context full')
"""

from __future__ import annotations

from enum import StrEnum


class EndReason(StrEnum):
    """Its values are metric labels and are stored in episode logs: renaming one breaks dashboards and old logs."""

    EMPTY_REPLY = "empty reply"
    SPOKE_FOR_OTHER = "spoke for the other"
    GUESSED = "guessed"  # by the attacker, who must not guess
    WRONG_GUESS = "wrong guess"
    RIGHT_GUESS = "right guess"
    SAID_WORD = "said the word"
    UNDECIDED = "undecided"
    CONTEXT_FULL = "context full"
    OTHER = "other"  # in a log of wire version 2 with a reason that no referee writes

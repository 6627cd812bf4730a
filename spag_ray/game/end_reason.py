"""Why a game ended, as a value to count and to compare. A referee's reason in words is for people.

>>> EndReason("said the word"), str(EndReason.CONTEXT_FULL)
(<EndReason.SAID_WORD: 'said the word'>, 'context full')
"""

from __future__ import annotations

from enum import StrEnum


class EndReason(StrEnum):
    """The reasons of Adversarial Taboo; other games have texts of their own. Its values are metric labels and are
    stored in episode logs: renaming one breaks dashboards and old logs."""

    EMPTY_REPLY = "empty reply"
    SPOKE_FOR_OTHER = "spoke for the other"
    GUESSED = "guessed"  # by the attacker, who must not guess
    WRONG_GUESS = "wrong guess"
    RIGHT_GUESS = "right guess"
    SAID_WORD = "said the word"
    UNDECIDED = "undecided"
    CONTEXT_FULL = "context full"
    OTHER = "other"  # of games that were not judged here


MAX_LENGTH = 64  # characters


def end_reason(text: str) -> EndReason | str:
    """The reason that is written as `text`: one of Taboo's, or that of another game.

    >>> end_reason("said the word"), end_reason("fold")
    (<EndReason.SAID_WORD: 'said the word'>, 'fold')
    """
    return EndReason(text) if text in _TEXTS else text


_TEXTS = frozenset(map(str, EndReason))

"""Episode records of wire versions 2 to 4.

Version 2 has the reason of a verdict only in words; version 3 has it as a value. Only this file derives the value from
the words of both referees. These words never change, because they are in old logs. Version 4 adds to a turn how
probable the target word was to the defender; version 5 adds the game, and what it paid.

>>> end_reason_of("the attacker said 'cats' (target word 'cat')")
<EndReason.SAID_WORD: 'said the word'>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spag_ray.game.end_reason import EndReason

# Text that the words contain -> the end reason; the first match counts.
_WORDS = {
    "reply is empty": EndReason.EMPTY_REPLY,
    "spoke for the": EndReason.SPOKE_FOR_OTHER,
    "made a guess": EndReason.GUESSED,
    "guess does not name": EndReason.WRONG_GUESS,
    "guessed the target word": EndReason.RIGHT_GUESS,
    "said": EndReason.SAID_WORD,
    "no turn": EndReason.UNDECIDED,
    "no room": EndReason.CONTEXT_FULL,
}


def end_reason_of(words: str) -> EndReason:
    """The end reason; OTHER for words that no referee used, as they were counted before."""
    return next((reason for part, reason in _WORDS.items() if part in words), EndReason.OTHER)


def as_written_now(turn: Sequence[Any]) -> tuple[Any, ...]:
    """A turn of version 2 or 3 with the value that it lacks."""
    return (*turn, None)

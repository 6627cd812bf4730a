"""Episode records of wire versions 2 and 3.

Version 2 gives the reason of a verdict in words only; version 3 carries it as a value. Here alone it is found from
words, those that both referees used; they are never changed, since they stand in logs. Version 4 adds to a turn how
probable the target word was to the defender.

>>> end_reason_of("the attacker said 'cats' (target word 'cat')")
<EndReason.SAID_WORD: 'said the word'>
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from spag_ray.game.end_reason import EndReason

# What the words have in them -> the end reason; the first that fits.
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
    """Words that no referee used give OTHER, as they were counted before."""
    return next((reason for part, reason in _WORDS.items() if part in words), EndReason.OTHER)


def as_written_now(turn: Sequence[Any]) -> tuple[Any, ...]:
    """A turn of version 2 or 3 with the value that it lacks."""
    return (*turn, None)

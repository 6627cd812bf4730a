"""Moves that may be legal in a TextArena environment: what its messages show in brackets, and variations of it.

>>> likely_moves(["Available Moves: '[0]', '[4]'"], random.Random(0))[:2]
['[4]', '[0]']
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

_BRACKETED = re.compile(r"\[[^\[\]\n]{1,40}\]")
_SENDER = re.compile(r"\[(GAME|Player \d+)\]")
_PART = re.compile(r"\d+|(?<![A-Za-z])[a-zA-Z](?![A-Za-z])|(?<![A-Za-z])[a-h](?=\d)")
NUM_VARIATIONS = 100


def likely_moves(messages: Sequence[str], rng: random.Random) -> list[str]:
    """Moves to try, likelier ones first: those of the last message that shows any, of earlier ones, and the same with
    other numbers and letters; a capital letter may stand for a number."""
    shown = [dict.fromkeys(_moves(text)) for text in reversed(messages)]
    found: dict[str, None] = {}
    for moves in shown:
        found |= dict.fromkeys(rng.sample(list(moves), len(moves)))
    every = list(found)
    for _ in range(NUM_VARIATIONS if every else 0):
        found.setdefault(_PART.sub(lambda part: _other(part[0], rng), rng.choice(every)))
    return list(found)


def _moves(text: str) -> list[str]:
    return [move for move in _BRACKETED.findall(text) if not _SENDER.fullmatch(move)]


def _other(part: str, rng: random.Random) -> str:
    if part.isdigit():
        return str(rng.randint(0, 9 if len(part) < 2 else 30))
    return rng.choice("abcdefgh") if part.islower() else rng.choice((part, str(rng.randint(0, 5))))

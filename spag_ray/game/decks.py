"""Word cards for the quickstart: the Taboo words and related words that the PyPI package `textarena` ships.

Only its data file is read; the package is not imported, since that would import far more.
"""

from __future__ import annotations

import importlib.util
import json
import random
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from spag_ray.errors import InputError

_DATA_FILE = Path("envs") / "Taboo" / "words.json"


def taboo_cards() -> dict[str, tuple[str, ...]]:
    """Target word -> related words: the cards whose word is one English word, lower-cased, sorted by word.

    Of the 1,414 cards those for names of several words, years and accented words are left out. A card without
    a related word that can be said (one that does not contain the target) is left out too.
    """
    cards: dict[str, list[str]] = {}
    for group in _read_data().values():
        for title, related in group.items():
            word = title.strip().lower()
            if re.fullmatch(r"[a-z]{3,}", word):
                clues = cards.setdefault(word, [])
                clues.extend(clue for clue in map(_clean, related) if clue and word not in clue)
    return {word: tuple(dict.fromkeys(clues)) for word, clues in sorted(cards.items()) if clues}


def split_words(words: Sequence[str], num_held_out: int, seed: int) -> tuple[list[str], list[str]]:
    """(train, held out): disjoint, together all words, a function of the set of words and the seed."""
    shuffled = sorted(set(words))
    if not 0 <= num_held_out <= len(shuffled):
        raise InputError(f"{num_held_out} of {len(shuffled)} words cannot be held out; give 0 to {len(shuffled)}")
    random.Random(f"split/{seed}").shuffle(shuffled)
    return shuffled[num_held_out:], shuffled[:num_held_out]


def without_words(cards: Mapping[str, Sequence[str]], words: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """The cards without these words, neither as targets nor among the related words."""
    out = set(words)
    return {
        word: tuple(clue for clue in clues if out.isdisjoint(clue.lower().split()))
        for word, clues in cards.items()
        if word not in out
    }


def _read_data() -> dict[str, dict[str, list[str]]]:
    spec = importlib.util.find_spec("textarena")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / _DATA_FILE
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    raise InputError(
        "the word cards come from the Python package textarena, which is missing or has no Taboo words; "
        "run `pip install textarena`, or set words.source to a words file of your own"
    )


def _clean(clue: str) -> str:
    """A related word as a player would write it: lower-case, single spaces, no remarks in brackets."""
    return " ".join(re.sub(r"\([^)]*\)", " ", clue).lower().split()).strip(" .,;:!?\"'")

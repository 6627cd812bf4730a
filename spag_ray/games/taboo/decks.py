"""Decks: target words with clues and traps, from a shipped deck (configs/decks/), a file, or textarena's Taboo cards.

>>> load_deck("everyday")["butter"].clues[:2]    # doctest: +SKIP
('toast', 'bread')

Only the data file of textarena is read; the package is not imported, because that would import far more.
"""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import os
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

from spag_ray.config.shipped import find_config
from spag_ray.errors import InputError, extra
from spag_ray.games.taboo.deck_file import Card, read_deck
from spag_ray.games.taboo.referee.word_forms import word_forms
from spag_ray.host.whole_files import given_text

TEXTARENA = "textarena"
_DATA_FILE = Path("envs") / "Taboo" / "words.json"

Deck = dict[str, Card]  # by word, in the order of the words


def load_deck(name: str, max_difficulty: float | None = None) -> Deck:
    """The deck of this name: `textarena`, a shipped one, or a file. With `max_difficulty` only the cards whose measured
    difficulty is at most that.

    Raises InputError for the first fault of its form, and if no card is left. Only `spag-ray words check` checks the
    text of its clues and traps.
    """
    if name == TEXTARENA:
        deck = taboo_cards()
    else:
        path = find_config(name, "decks")
        deck = dict(_read_once(path, os.path.getmtime(path) if os.path.isfile(path) else 0.0))
    if max_difficulty is None:
        return deck
    easy = easy_cards(deck, max_difficulty)
    if not easy:
        raise InputError(
            f"no card of the deck {name} has a measured difficulty of at most {max_difficulty}; raise "
            "words.max_difficulty or leave it empty, or measure the deck: python -m benchmarks.deck_difficulty"
        )
    return easy


def easy_cards(cards: Mapping[str, Card], max_difficulty: float) -> Deck:
    """The cards whose measured difficulty is at most this."""
    return {
        word: card for word, card in cards.items() if card.difficulty is not None and card.difficulty <= max_difficulty
    }


@lru_cache(maxsize=4)
def _read_once(path: Path, _: float) -> Deck:
    """A deck takes a fifth of a second to read, and every new instance of the game asks for it."""
    entries, faults = read_deck(given_text(path, "the deck"))
    if faults:
        fault = faults[0]
        raise InputError(f"{path}:{fault.line}: {fault.text}; `spag-ray words check {path}` names every fault")
    return {entry.card.word: entry.card for entry in sorted(entries, key=lambda entry: entry.card.word)}


def taboo_cards() -> Deck:
    """textarena's Taboo cards: those whose word is one English word, lower-cased.

    Of the 1,414 cards, those for names of several words, years and accented words are left out. Cards without any
    allowed related word (one that does not contain the target) are left out too.
    """
    cards: dict[str, list[str]] = {}
    for group in _read_data().values():
        for title, related in group.items():
            word = title.strip().lower()
            if re.fullmatch(r"[a-z]{3,}", word):
                clues = cards.setdefault(word, [])
                clues.extend(clue for clue in map(_clean, related) if clue and word not in clue)
    return {word: Card(word, tuple(dict.fromkeys(clues))) for word, clues in sorted(cards.items()) if clues}


def split_words(words: Sequence[str], num_held_out: int, seed: int) -> tuple[list[str], list[str]]:
    """(train, held out): disjoint, together all words, a function of the set of words and the seed."""
    shuffled = sorted(set(words))
    if not 0 <= num_held_out <= len(shuffled):
        raise InputError(f"{num_held_out} of {len(shuffled)} words cannot be held out; give 0 to {len(shuffled)}")
    random.Random(f"split/{seed}").shuffle(shuffled)
    return shuffled[num_held_out:], shuffled[:num_held_out]


def without_words(cards: Mapping[str, Card], words: Sequence[str]) -> Deck:
    """The cards without these words: neither as targets nor in clues or traps, in no form that the referee takes for
    the word ("feet" for "foot"), with small letters or capitals."""
    is_free = says_none_of(words)
    return {
        word: dataclasses.replace(
            card,
            clues=tuple(filter(is_free, card.clues)),
            traps=tuple(trap for trap in card.traps if is_free(trap.ask) and is_free(trap.answer)),
        )
        for word, card in cards.items()
        if is_free(word)
    }


def says_none_of(words: Iterable[str]) -> Callable[[str], bool]:
    """Of a text: whether it has none of these words, in any of their forms."""
    forms = [word_forms(word).pattern for word in sorted({word.casefold() for word in words})]

    def is_free(text: str) -> bool:
        folded = text.casefold()
        return not any(form.search(folded) for form in forms)

    return is_free


def _read_data() -> dict[str, dict[str, list[str]]]:
    spec = importlib.util.find_spec("textarena")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        path = Path(folder) / _DATA_FILE
        if path.is_file():
            return json.loads(path.read_text(encoding="utf-8"))
    raise InputError(
        "words.source: textarena needs the Taboo cards of the Python package textarena, which is missing or has none; "
        f"{extra('textarena')}; or set words.source: deck"
    )


def _clean(clue: str) -> str:
    """A related word as a player would write it: lower-case, single spaces, no remarks in brackets."""
    return " ".join(re.sub(r"\([^)]*\)", " ", clue).lower().split()).strip(" .,;:!?\"'")

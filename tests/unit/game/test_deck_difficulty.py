"""benchmarks/deck_difficulty.py: which clues the listener is told, and what it writes into the file."""

import pytest

from benchmarks.deck_difficulty import draws_of, with_difficulties
from spag_ray.errors import InputError
from spag_ray.games.taboo.decks import Card, read_deck

DECK = """\
# A deck of two.

butter:   # on bread
  clues: [toast, yellow]
  difficulty: 0.9
  traps:
    - {ask: "What do you spread on toast?", answer: "I spread butter."}

# A large cat.
tiger:
  clues:
    - stripes
    - roars
"""


def test_only_lines_of_difficulty_change() -> None:
    text = with_difficulties(DECK, {"butter": 0.125, "tiger": 1.0})
    assert [entry.card.difficulty for entry in read_deck(text)[0]] == [0.125, 1.0]
    kept = [line for line in DECK.splitlines() if "difficulty" not in line]
    assert [line for line in text.splitlines() if "difficulty" not in line] == kept
    assert with_difficulties(text, {"butter": 0.125, "tiger": 1.0}) == text, "again: nothing to change"


def test_a_deck_that_it_cannot_write_into_is_refused() -> None:
    with pytest.raises(InputError, match="line 1: 'Tiger' is not one"):
        with_difficulties("Tiger:\n  clues: [roars]\n", {})
    with pytest.raises(InputError, match="several lines"):
        with_difficulties("tiger: {clues: [roars]}\n", {"tiger": 0.5})


def test_draws_are_seeded_and_each_words_own() -> None:
    tiger = Card("tiger", tuple("abcdefghij"))
    alone = draws_of([tiger], 8, seed=0)
    assert alone == draws_of([Card("cat", ("purrs",)), tiger], 8, seed=0)[8:]
    assert all(word == "tiger" and len(set(told)) == 4 for word, told in alone)
    assert len(set(alone)) > 1
    assert alone != draws_of([tiger], 8, seed=1)

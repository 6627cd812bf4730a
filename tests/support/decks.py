"""Small decks for tests."""

from collections.abc import Mapping, Sequence

from spag_ray.games.taboo.decks import Card, Deck


def cards_of(clues: Mapping[str, Sequence[str]]) -> Deck:
    """Cards that have clues alone."""
    return {word: Card(word, tuple(found)) for word, found in clues.items()}

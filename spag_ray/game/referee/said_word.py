"""What counts as saying a word: real inflections, found as words, and disguises of them.

    >>> from spag_ray.game.referee.folding import fold
    >>> said = find_word("They have *written* books.", fold("They have *written* books."), "write")
    >>> said
    (11, 18)

A word is found whole ("cat" not in "category"), also in the possessive, inside emphasis or quotes, as a part
of a hyphenated compound ("cat-like"), and in the disguises that disguise.py names.
"""

from __future__ import annotations

from spag_ray.game.referee.disguise import find_disguised
from spag_ray.game.referee.ruling import FoldedText
from spag_ray.game.referee.word_forms import word_forms


def find_word(content: str, folded: FoldedText, word: str) -> tuple[int, int] | None:
    """The written characters [start, end) that say a form of `word`; `folded` is `content` folded (folding.py)."""
    forms = word_forms(word)
    if any(beginning in folded.text for beginning in forms.beginnings):
        match = forms.pattern.search(folded.text)
        if match is not None:
            return folded.span(*match.span())
    return find_disguised(content, forms)

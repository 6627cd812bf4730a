"""What counts as saying a word: its inflections, found as whole words, and disguises of them.

    >>> from spag_ray.games.taboo.referee.folding import fold
    >>> said = find_word("They have *written* books.", fold("They have *written* books."), "write")
    >>> said
    (11, 18)

Only whole words are found ("cat" is not in "category"). A word is also found in the possessive, inside emphasis or
quotes, as a part of a hyphenated compound ("cat-like"), and in the disguises of disguise.py. A word of a script without
spaces between words (Chinese, Japanese, Thai; word_forms.py) is found anywhere.
"""

from __future__ import annotations

import re

from spag_ray.games.taboo.referee.disguise import find_disguised
from spag_ray.games.taboo.referee.ruling import FoldedText
from spag_ray.games.taboo.referee.skeleton import UNSPACED
from spag_ray.games.taboo.referee.word_forms import word_forms

_UNSPACED = re.compile(f"[{UNSPACED}]")


def find_word(content: str, folded: FoldedText, word: str) -> tuple[int, int] | None:
    """The original characters [start, end) that say a form of `word`; `folded` is `content` folded (folding.py)."""
    forms = word_forms(word)
    if any(beginning in folded.text for beginning in forms.beginnings):
        is_plain = forms.is_unspaced or folded.text.isascii()
        match = forms.pattern.search(folded.text if is_plain else _UNSPACED.sub(" ", folded.text))
        if match is not None:
            return folded.span(*match.span())
    return find_disguised(content, forms)

"""How the strict referee found words before it looked for disguises: kept to count what the disguises changed.

Forms are those of spag_ray (they are the same); the text is folded and searched as it was then.
"""

import re
import unicodedata
from collections.abc import Iterator

from spag_ray.games.taboo.referee.word_forms import word_forms

_SAME_AS = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201b\u02bc\u02b9\u2032\u00b4", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
)
_LONE_LETTER = re.compile(r"(?<![^\W_])(?<![^\W_]')[^\W\d_](?![^\W_])(?!'[^\W_])")
_COMPOUND = re.compile(r"[^\W_]+(?:-[^\W_]+)+")


def says(content: str, word: str) -> bool:
    """Whether a form of the word stands in the text whole, broken by hyphens, or spelled out."""
    return Text(content).says(word)


class Text:
    """A text that is searched for many words."""

    def __init__(self, content: str) -> None:
        self.folded = _fold(content)
        self.disguised = frozenset(_disguised(self.folded))

    def says(self, word: str) -> bool:
        forms = word_forms(word)
        if any(each in self.folded for each in forms.beginnings) and forms.pattern.search(self.folded):
            return True
        return not self.disguised.isdisjoint(forms.joined)


def _fold(content: str) -> str:
    if content.isascii():
        return content.lower()
    visible = "".join(char for char in content if unicodedata.category(char) != "Cf")
    folded = unicodedata.normalize("NFKC", visible.translate(_SAME_AS))
    return unicodedata.normalize("NFKC", folded.casefold()).translate(_SAME_AS)


def _disguised(text: str) -> Iterator[str]:
    for match in _COMPOUND.finditer(text):
        yield match.group().replace("-", "")
    for run in _spelled_runs(text):
        for first in range(3):
            for last in range(len(run), len(run) - 2, -1):
                outside = [text[position] for position in (*run[:first], *run[last:])]
                letters = "".join(text[position] for position in run[first:last])
                if len(letters) >= 3 and set(outside) <= {"a", "i"}:
                    yield letters


def _spelled_runs(text: str) -> Iterator[list[int]]:
    run: list[int] = []
    separator = ""
    for match in _LONE_LETTER.finditer(text):
        position = match.start()
        between = text[run[-1] + 1 : position] if run else ""
        if run and len(between) <= 5 and not any(char.isalnum() for char in between):
            if between == separator or len(run) == 1:
                separator = between
                run.append(position)
                continue
            yield run
            run = [run[-1], position]
            separator = between
            continue
        yield run
        run = [position]
    yield run

"""Folding makes text comparable: case-folded, NFKC-normalised, plain quotes and hyphens, no invisible characters."""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from spag_ray.games.taboo.referee.skeleton import is_invisible

_SAME_AS = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201b\u02bc\u02b9\u2032\u00b4", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
)
_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f]")
_NOT_PLAIN = re.compile(r"[^\x20-\x7e\t\n]")


@dataclass(frozen=True)
class FoldedText:
    """Text after `fold`. `origins[i]` is the range of the original text that folded character i came from; None when
    characters correspond one to one."""

    text: str
    origins: tuple[tuple[int, int], ...] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The original characters of folded characters [start, end), for start < end."""
        if self.origins is None:
            return start, end
        return self.origins[start][0], self.origins[end - 1][1]


def fold(content: str) -> FoldedText:
    """Case-folded, NFKC-normalised text with plain quotes and hyphens, without invisible characters."""
    plain = content if content.isascii() else content.translate(_SAME_AS)  # one character becomes one character
    if plain.isascii() and not _CONTROL.search(plain):
        return FoldedText(plain.lower())
    pieces: list[str] = []
    origins: list[tuple[int, int]] = []
    done = 0
    for start, end in _clusters(content):
        pieces.append(content[done:start].lower())
        origins.extend(zip(range(done, start), range(done + 1, start + 1), strict=True))
        folded = _folded(content[start:end])
        pieces.append(folded)
        origins.extend([(start, end)] * len(folded))
        done = end
    pieces.append(content[done:].lower())
    origins.extend(zip(range(done, len(content)), range(done + 1, len(content) + 1), strict=True))
    return FoldedText("".join(pieces), tuple(origins))


def _folded(cluster: str) -> str:
    seen = "".join(char for char in cluster if not is_invisible(char))
    # Accents are translated first, because NFKC decomposes some of them (U+00B4).
    folded = unicodedata.normalize("NFKC", seen.translate(_SAME_AS))
    return unicodedata.normalize("NFKC", folded.casefold()).translate(_SAME_AS)


def _clusters(content: str) -> list[tuple[int, int]]:
    """[start, end) of each character that is not plain ASCII, including the characters that it combines with."""
    found: list[tuple[int, int]] = []
    for match in _NOT_PLAIN.finditer(content):
        start = match.start()
        if start > 0 and (unicodedata.combining(match.group()) or "\u1160" <= match.group() <= "\u11ff"):  # of Hangul
            if found and found[-1][1] == start:
                found[-1] = (found[-1][0], start + 1)
            else:
                found.append((start - 1, start + 1))
        else:
            found.append((start, start + 1))
    return found

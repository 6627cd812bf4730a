"""Text made comparable: folded (case, Unicode forms, quotes, hyphens), and skeletons: the letter that a character looks
like.

    >>> "".join(letters_of(char) for char in "R\\u00edv\\u0435\\u200br")
    'river'
    >>> coarse("r1ver") == coarse("river") == coarse("rlver")
    True

For a skeleton a character is decomposed (NFKD). Accents, controls and default-ignorable characters are dropped; marks
that are letters (the vowel signs of Devanagari, Thai or Tamil) are kept. A character that looks like a Latin letter
becomes that letter. The table of look-alikes is Unicode's confusables.txt from the package confusable_homoglyphs, with
a few additions.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import cache, lru_cache

# Default_Ignorable_Code_Point of Unicode's DerivedCoreProperties.txt, without format characters (category Cf).
_IGNORABLE = (
    (0x034F, 0x034F),
    (0x115F, 0x1160),
    (0x17B4, 0x17B5),
    (0x180B, 0x180F),
    (0x2060, 0x206F),
    (0x3164, 0x3164),
    (0xFE00, 0xFE0F),
    (0xFFA0, 0xFFA0),
    (0xFFF0, 0xFFF8),
    (0x1BCA0, 0x1BCA3),
    (0xE0000, 0xE0FFF),
)
# Marks in these blocks are letters: Thaana, the scripts of India and South East Asia.
_BLOCKS_OF_MARKS = ((0x07A6, 0x07B0), (0x0900, 0x1AAF), (0x1B00, 0x1CCF), (0xA800, 0xABFF), (0x11000, 0x11FFF))
_DEPTH = 2  # Cyrillic be -> small capital B -> b
_SPACES = "\t\n\v\f\r\x85"  # control characters that separate words
_VOICING = "\u3099\u309a"  # part of a Japanese letter, not an accent on it
# Letters whose shape is Latin but that Unicode's table does not map to a Latin letter. Sharp s becomes "ss", not "b".
# The trade mark and service mark signs are not letters.
_MORE = {"\u00df": "ss", "\u1e9e": "ss", "\u2122": "\u2122", "\u2120": "\u2120"} | dict(
    zip("\u03b2\u03d0\u03c9\u0454\u03b5\u044d\u044f\u0438\u0448\u0138\u03bb", "bbweeernwkl", strict=True)
)
_NAMED = re.compile(
    r"(?:NEGATIVE (?:SQUARED|CIRCLED) LATIN CAPITAL LETTER|REGIONAL INDICATOR SYMBOL LETTER|LATIN LETTER SMALL CAPITAL"
    r"|LATIN (?:SMALL|CAPITAL) LETTER(?: SCRIPT| DOTLESS)?) ([A-Z])(?: WITH [A-Z ]+)?"
)
_COARSE = str.maketrans("i0123456789", "lolzeasgtbg")

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


def is_invisible(char: str) -> bool:
    """Whether the character is invisible and separates no words: a control, format or default-ignorable character."""
    kind = unicodedata.category(char)
    if kind == "Cc":
        return char not in _SPACES
    return kind == "Cf" or any(first <= ord(char) <= last for first, last in _IGNORABLE)


def is_mark_letter(char: str) -> bool:
    """Whether the character is a combining mark that is a letter, not an accent on one."""
    if char < "\u0300" or unicodedata.category(char) not in ("Mn", "Mc", "Me"):
        return False
    return char in _VOICING or any(first <= ord(char) <= last for first, last in _BLOCKS_OF_MARKS)


def is_letters(text: str) -> bool:
    """Whether the text consists of letters of any script, marks that are letters included."""
    return text.isalpha() or (bool(text) and all(char.isalpha() or is_mark_letter(char) for char in text))


def without_accents(text: str) -> str:
    """`naive` for `naïve`: the word as it is often typed."""
    if text.isascii():
        return text
    decomposed = unicodedata.normalize("NFD", text)
    kept = "".join(char for char in decomposed if not unicodedata.combining(char) or is_mark_letter(char))
    return unicodedata.normalize("NFC", kept)


# The mark letters of the Basic Multilingual Plane, for a character class of a regular expression.
MARK_LETTERS = "".join(
    char for first, last in _BLOCKS_OF_MARKS[:-1] for char in map(chr, range(first, last + 1)) if is_mark_letter(char)
)
# Scripts without spaces between words, and Korean, whose particles follow a noun without a space. From Thai to Burmese,
# Hangul, Khmer, New Tai Lue, Tai Tham, Japanese and Chinese, Javanese. For a character class, too.
UNSPACED = (
    "\u0e00-\u109f\u1100-\u11ff\u1780-\u17ff\u1980-\u19df\u1a20-\u1aaf\u3005-\u3007\u3040-\u30ff\u31f0-\u31ff"
    "\u3400-\u9fff\ua980-\ua9df\uac00-\ud7ff\U00020000-\U0003ffff"
)


@lru_cache(maxsize=65536)
def letters_of(char: str) -> str:
    """The lower-case letters and digits that a character looks like; "" if it is invisible; else the character
    itself."""
    return _resolved(char, _DEPTH)


def coarse(letters: str) -> str:
    """Maps letters and digits that look alike to the same letters: i, l and 1; m and rn; o and 0."""
    return letters.translate(_COARSE).replace("m", "rn").replace("w", "vv")


def coarse_letters(text: str) -> str:
    """The coarse letters of all tokens of a text, joined, without separators."""
    return text.translate(_TABLE).replace("m", "rn").replace("w", "vv")


class _CoarseLetters(dict[int, str | None]):
    """A table for str.translate, filled on demand. Deletions are None, not "": only then is ASCII translated fast."""

    def __missing__(self, point: int) -> str | None:
        letters = "".join(char for char in letters_of(chr(point)) if char.isalnum() or is_mark_letter(char))
        return self.setdefault(point, letters.translate(_COARSE) or None)


_TABLE = _CoarseLetters()


def _resolved(char: str, depth: int) -> str:
    """`letters_of`, following a chain of at most `depth` look-alikes."""
    if char.isascii():
        return "" if is_invisible(char) else char.lower()
    if is_invisible(char):
        return ""
    if is_mark_letter(char):
        return unicodedata.normalize("NFKD", char)
    if unicodedata.category(char) in ("Mn", "Me"):
        return ""
    named = _NAMED.fullmatch(unicodedata.name(char, ""))
    if named is not None:
        return named.group(1).lower()
    if char in _MORE:
        return _MORE[char]
    pieces = unicodedata.normalize("NFKD", char)
    if pieces != char:
        return "".join(_resolved(piece, depth) for piece in pieces)
    for look_alike in _look_alikes().get(char, ()) if depth else ():
        letters = "".join(_resolved(each, depth - 1) for each in look_alike["c"])
        if letters.isascii() and letters.isalnum():
            return letters
    folded = char.casefold()
    return folded if folded == char else "".join(_resolved(each, depth) for each in folded)


@cache
def _look_alikes() -> dict[str, list[dict[str, str]]]:
    from confusable_homoglyphs.confusables import confusables_data  # 10 ms, and most games are plain ASCII

    return dict(confusables_data)

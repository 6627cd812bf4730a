"""What counts as saying a word: folded text, real inflections, words found as words.

    >>> said = find_word(fold("They have *written* books."), "write")
    >>> said.span()
    (11, 18)

A word is found whole ("cat" not in "category"), also in the possessive, inside emphasis or quotes, as a part
of a hyphenated compound ("cat-like"), broken by hyphens ("ca-t") and spelled out ("c a t", "C.A.T.").
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from spag_ray.errors import InputError
from spag_ray.ruling import FoldedText
from spag_ray.words import STOP_WORDS

_SAME_AS = str.maketrans(
    dict.fromkeys("\u2018\u2019\u201b\u02bc\u02b9\u2032\u00b4", "'")
    | dict.fromkeys("\u201c\u201d\u201e\u2033\u00ab\u00bb", '"')
    | dict.fromkeys("\u2010\u2011\u2012\u2013\u2212", "-")
)
# Between the parts of a compound: "ice cream", "ice-cream", "icecream", "*ice* cream".
_JOINT = r"[\s\-*_\"'`]{0,6}"
_BEFORE = r"(?<![^\W_])(?<![^\W_]')"  # no letter; not the clock of "o'clock"
_AFTER = r"(?![^\W_])(?!'t(?![^\W_]))"  # no letter; not the won of "won't"
_LONE_LETTER = re.compile(r"(?<![^\W_])(?<![^\W_]')[^\W\d_](?![^\W_])(?!'[^\W_])")
_COMPOUND = re.compile(r"[^\W_]+(?:-[^\W_]+)+")
_MIN_SPELLED = 3  # "U.S." does not spell "us"


@dataclass(frozen=True)
class WordForms:
    """A target word made ready: `pattern` finds a form as a word, `joined` holds the forms as one.

    A text without any of `beginnings` need not be searched, which is most of them.
    """

    pattern: re.Pattern[str]
    joined: frozenset[str]
    beginnings: tuple[str, ...]


@dataclass(frozen=True)
class Said:
    """Where a form of the word stands in folded text."""

    start: int
    end: int

    def span(self) -> tuple[int, int]:
        return self.start, self.end


def fold(content: str) -> FoldedText:
    """Case-folded, NFKC-normalised text with plain quotes and hyphens, without invisible characters."""
    if content.isascii():
        return FoldedText(content.lower())
    pieces: list[str] = []
    origins: list[tuple[int, int]] = []
    for start, end in _clusters(content):
        cluster = "".join(char for char in content[start:end] if unicodedata.category(char) != "Cf")
        # Accents are translated before NFKC, which would take some of them (U+00B4) apart.
        folded = unicodedata.normalize("NFKC", cluster.translate(_SAME_AS))
        folded = unicodedata.normalize("NFKC", folded.casefold()).translate(_SAME_AS)
        pieces.append(folded)
        origins.extend([(start, end)] * len(folded))
    return FoldedText("".join(pieces), tuple(origins))


def find_word(folded: FoldedText, word: str) -> Said | None:
    """The first place where a form of `word` is said, in any of the ways named above; else None."""
    forms = word_forms(word)
    if any(beginning in folded.text for beginning in forms.beginnings):
        match = forms.pattern.search(folded.text)
        if match is not None:
            return Said(*match.span())
    return next(_disguised(folded.text, forms.joined), None)


class WordFinder:
    """Answers "does a form of `word` begin here?" for many places of one text."""

    def __init__(self, text: str, word: str) -> None:
        forms = word_forms(word)
        self.text = text
        self.word = word
        self._pattern = forms.pattern
        self._disguised = {said.start: said.end for said in _disguised(text, forms.joined)}

    def end_at(self, start: int) -> int | None:
        """The end of the form that begins at character `start`, if one does."""
        match = self._pattern.match(self.text, start)
        return match.end() if match is not None else self._disguised.get(start)


@lru_cache(maxsize=65536)
def word_forms(word: str) -> WordForms:
    """The word with all its inflections; of a compound the first or the last part is inflected."""
    folded = fold(word.strip()).text
    if not folded:
        raise InputError(f"the target word {word!r} has no visible character; choose another")
    parts = [part for part in re.split(r"[\s\-]+", folded) if part] or [folded]
    variants = {tuple(parts)}
    for index in {0, len(parts) - 1}:
        for form in inflections(parts[index]):
            variants.add((*parts[:index], form, *parts[index + 1 :]))
    variants |= {tuple(_without_accents(part) or part for part in variant) for variant in variants}
    ordered = sorted(variants, key=lambda variant: (-len("".join(variant)), variant))
    either = "|".join(_JOINT.join(re.escape(part) for part in variant) for variant in ordered)
    firsts = {variant[0] for variant in variants}
    return WordForms(
        pattern=re.compile(f"{_BEFORE}(?:{either}){_AFTER}"),
        joined=frozenset("".join(variant) for variant in variants),
        beginnings=tuple(
            sorted(first for first in firsts if not any(other != first and other in first for other in firsts))
        ),
    )


@lru_cache(maxsize=65536)
def inflections(word: str) -> frozenset[str]:
    """All inflections of a single folded word, itself included.

    A word that only exists as an inflection ("went", "knives") stands for its dictionary form too; one that
    is also a word of its own ("saw", "evening") does not, but for a plural ("glasses"). Very common words
    that happen to be an inflection ("does" of "doe") are left out.
    """
    import lemminflect

    lemmas_by_kind: dict[str, tuple[str, ...]] = lemminflect.getAllLemmas(word)
    lemmas = _lemmas(word)
    bases = {word} if word in lemmas else lemmas | {word}
    for lemma in lemmas_by_kind.get("NOUN", ()):
        if word in lemminflect.getAllInflections(lemma, "NOUN").get("NNS", ()):
            bases.add(lemma)
    forms = set(bases)
    for base in bases:
        for found in lemminflect.getAllInflections(base).values():
            forms.update(found)
    forms |= {form for form in _regular_forms(word) if word in _lemmas(form) or not _lemmas(form)}
    forms = {form.lower() for form in forms}
    return frozenset(forms if word in STOP_WORDS else forms - STOP_WORDS) | {word}


def _regular_forms(word: str) -> set[str]:
    """What rules make of the word as noun and verb: the dictionary lacks "cans", "leaped" and new words."""
    import lemminflect

    if len(word) < 2 or not word.isalpha() or (_lemmas(word) and word not in _lemmas(word)):
        return set()
    by_kind = [lemminflect.getAllInflectionsOOV(word, kind) for kind in ("NOUN", "VERB")]
    forms = {form for found in by_kind for group in found.values() for form in group}
    if not _lemmas(word):
        from textblob import Word

        forms.add(str(Word(word).pluralize()))  # "oxen"
    return forms


def _lemmas(word: str) -> set[str]:
    import lemminflect

    return {lemma for found in lemminflect.getAllLemmas(word).values() for lemma in found}


def _disguised(text: str, joined: frozenset[str]) -> Iterator[Said]:
    """Forms broken by hyphens or spelled out letter by letter."""
    if "-" in text:
        for match in _COMPOUND.finditer(text):
            if match.group().replace("-", "") in joined:
                yield Said(*match.span())
    for run in _spelled_runs(text):
        # "I mean a c a t": the article is a lone letter too.
        for first in range(3):
            for last in range(len(run), len(run) - 2, -1):
                outside = [text[position] for position in (*run[:first], *run[last:])]
                letters = "".join(text[position] for position in run[first:last])
                if len(letters) >= _MIN_SPELLED and letters in joined and set(outside) <= {"a", "i"}:
                    yield Said(run[first], run[last - 1] + 1)


def _spelled_runs(text: str) -> Iterator[list[int]]:
    """Positions of lone letters that follow one another with the same separator between them."""
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


def _clusters(content: str) -> Iterator[tuple[int, int]]:
    """[start, end) of each character with the combining marks that follow it."""
    start = 0
    for index in range(1, len(content) + 1):
        if index == len(content) or not unicodedata.combining(content[index]):
            yield start, index
            start = index


def _without_accents(word: str) -> str:
    """`naive` for `naïve`: how the word is often typed."""
    return "".join(char for char in unicodedata.normalize("NFD", word) if not unicodedata.combining(char))

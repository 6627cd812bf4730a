"""What counts as saying a word: folded text, real inflections, words found as words.

    >>> said = find_word(fold("They have *written* books."), "write")
    >>> said.span()
    (12, 19)

A word is found whole ("cat" not in "category"), also in the possessive, inside emphasis or quotes, as a part of a
hyphenated compound ("cat-like"), broken by hyphens ("ca-t") and spelled out ("c a t", "C.A.T.").
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from spag_ray.ruling import FoldedText
from spag_ray.words import STOP_WORDS

_SAME_AS = str.maketrans(
    {**dict.fromkeys("\u2018\u2019\u201b\u02bc\u02b9\u2032\u00b4", "'"), **dict.fromkeys("\u201c\u201d\u201e\u2033\u00ab\u00bb", '"')}
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
    """A target word made ready: `pattern` finds a form as a word, `joined` holds the forms without separators."""

    pattern: re.Pattern[str]
    joined: frozenset[str]


@dataclass(frozen=True)
class Said:
    """Where a form of the word stands in folded text."""

    start: int
    end: int

    def span(self) -> tuple[int, int]:
        return self.start, self.end


def fold(content: str) -> FoldedText:
    """Case-folded, NFKC-normalised text with plain quotes and hyphens and without invisible format characters."""
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
    match = forms.pattern.search(folded.text)
    if match is not None:
        return Said(*match.span())
    return next(_disguised(folded.text, forms.joined), None)


def find_word_at(folded: FoldedText, word: str, start: int) -> Said | None:
    """A form of `word` that begins exactly at folded character `start`."""
    forms = word_forms(word)
    match = forms.pattern.match(folded.text, start)
    if match is not None:
        return Said(*match.span())
    return next((said for said in _disguised(folded.text, forms.joined) if said.start == start), None)


@lru_cache(maxsize=65536)
def word_forms(word: str) -> WordForms:
    """The word, its plural, conjugation and comparison. For a compound the first or the last part is inflected."""
    folded = fold(word.strip()).text
    parts = re.split(r"[\s\-]+", folded.strip("-")) if re.search(r"[\s\-]", folded) else [folded]
    variants = {tuple(parts)}
    for index in {0, len(parts) - 1}:
        for form in inflections(parts[index]):
            variants.add((*parts[:index], form, *parts[index + 1 :]))
    variants |= {tuple(_without_accents(part) for part in variant) for variant in variants}
    ordered = sorted(variants, key=lambda variant: (-len("".join(variant)), variant))
    either = "|".join(_JOINT.join(re.escape(part) for part in variant) for variant in ordered)
    return WordForms(
        pattern=re.compile(f"{_BEFORE}(?:{either}){_AFTER}"),
        joined=frozenset("".join(variant) for variant in variants),
    )


@lru_cache(maxsize=65536)
def inflections(word: str) -> frozenset[str]:
    """All inflections of a single folded word, itself included.

    A word that only exists as an inflection ("went", "knives") stands for its dictionary form too; one that is also a
    word of its own ("saw", "evening") does not, but for a plural ("glasses"). Very common words that happen to be an
    inflection ("does" of "doe") are left out.
    """
    import lemminflect

    lemmas_by_kind: dict[str, tuple[str, ...]] = lemminflect.getAllLemmas(word)
    lemmas = {lemma for found in lemmas_by_kind.values() for lemma in found}
    bases = {word} if word in lemmas else lemmas | {word}
    for lemma in lemmas_by_kind.get("NOUN", ()):
        if word in lemminflect.getAllInflections(lemma, "NOUN").get("NNS", ()):
            bases.add(lemma)
    forms = set(bases)
    for base in bases:
        for found in lemminflect.getAllInflections(base).values():
            forms.update(found)
    is_noun = "NOUN" in lemmas_by_kind and word in lemmas_by_kind["NOUN"]
    guessed_kinds = ("NOUN",) if is_noun else () if lemmas else ("NOUN", "VERB")
    if len(word) > 1 and word.isalpha():
        for kind in guessed_kinds:
            for found in lemminflect.getAllInflectionsOOV(word, kind).values():
                forms.update(found)
    forms = {form.lower() for form in forms}
    return frozenset(forms if word in STOP_WORDS else forms - STOP_WORDS) | {word}


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

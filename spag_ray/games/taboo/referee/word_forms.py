"""The forms of a target word: its inflections, and the patterns that find them.

>>> sorted(inflections("write"))
['write', 'writed', 'writes', 'writing', 'written', 'wrote']
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass
from functools import lru_cache

from spag_ray.errors import InputError
from spag_ray.game.words import STOP_WORDS
from spag_ray.games.taboo.referee.folding import (
    MARK_LETTERS,
    UNSPACED,
    coarse,
    fold,
    is_mark_letter,
    letters_of,
    without_accents,
)

# Between the parts of a compound: "ice cream", "ice-cream", "icecream", "*ice* cream".
_JOINT = r"[\s\-*_\"'`]{0,6}"
_BEFORE = r"(?<![^\W_])(?<![^\W_]')"  # no letter before it; not the "clock" of "o'clock"
_AFTER = r"(?![^\W_])(?!'t(?![^\W_]))"  # no letter after it; not the "won" of "won't"
# The same beside a word of a script without spaces ("T" of a Japanese T-shirt), and beside one that has vowel signs. A
# word may go on with vowel signs, which are endings then.
_BEFORE_LATIN = rf"(?<![^\W_{UNSPACED}])"
_AFTER_LATIN = rf"(?![^\W_{UNSPACED}])"
_BEFORE_MARKED = rf"(?<![^\W_])(?<![{MARK_LETTERS}])"
_AFTER_MARKED = rf"(?![{MARK_LETTERS}]*[^\W_])"
_HAS_UNSPACED = re.compile(f"[{UNSPACED}]")
_ONLY_HAN = re.compile("[\u3400-\u9fff\U00020000-\U0003ffff]+")
KEPT = 4096  # words: about 7 KiB each, in every process that judges, and a list may have 50,000
_IN_USE = 2.5  # Zipf: three times in ten million words
_SHORT_IN_USE = 4.3  # of two letters, which are often only a part of words: twenty in a million


@dataclass(frozen=True)
class WordForms:
    """A target word prepared for the search. `pattern` finds a form as a whole word, or, of a script without spaces
    (`is_unspaced`), anywhere; `joined` holds the forms without separators.

    A text that contains none of `beginnings` need not be searched with `pattern`; that is true of most texts.
    `skeletons` maps the coarse letters of a form (folding.py) to its letters. A text whose coarse letters contain none
    of `cores` has no form in disguise. `short_cores` have one or two letters, which most texts contain.
    """

    pattern: re.Pattern[str]
    is_unspaced: bool
    is_latin: bool
    joined: frozenset[str]
    beginnings: tuple[str, ...]
    skeletons: dict[str, frozenset[str]]
    cores: tuple[str, ...]
    short_cores: tuple[str, ...]


@lru_cache(KEPT)
def word_forms(word: str) -> WordForms:
    """The word with all its inflections. In a compound, the first or the last part is inflected."""
    parts = parts_of(word)
    variants = {tuple(parts)}
    for index in {0, len(parts) - 1}:
        for form in inflections(parts[index]) | _without_stops(parts[index]):
            variants.add((*parts[:index], form, *parts[index + 1 :]))
    variants |= {tuple(without_accents(part) or part for part in variant) for variant in variants}
    ordered = sorted(variants, key=lambda variant: (-len("".join(variant)), variant))
    is_unspaced = any(_HAS_UNSPACED.search(part) for part in parts)
    written = _unspaced_pattern if is_unspaced else re.escape
    either = "|".join(_JOINT.join(written(part) for part in variant) for variant in ordered)
    before, after = _edges(parts)
    joined = frozenset("".join(variant) for variant in variants)
    skeletons = _skeletons(joined)
    return WordForms(
        pattern=re.compile(f"{before}(?:{either}){after}"),
        is_unspaced=is_unspaced,
        is_latin=all(_is_latin(char) for part in parts for char in part if char.isalpha()),
        joined=joined,
        beginnings=_shortest({variant[0][:1] if is_unspaced else variant[0] for variant in variants}),
        skeletons=skeletons,
        cores=_shortest({form for form in skeletons if len(form) >= 3}),
        short_cores=_shortest({form for form in skeletons if len(form) < 3}),
    )


def parts_of(word: str) -> list[str]:
    """The parts of a compound, folded. Raises InputError for a word without a visible character."""
    folded = fold(word.strip()).text
    if not folded:
        raise InputError(f"the target word {word!r} has no visible character; choose another")
    return [part for part in re.split(r"[\s\-]+", folded) if part] or [folded]


def _without_stops(part: str) -> set[str]:
    """`pm` and `p.m` for `p.m.`, `yahoo` for `yahoo!`; not `us` for `u.s.`, which is another word."""
    if any(map(str.isdigit, part)):
        return set()
    return {part.rstrip(".!?"), re.sub("[.!?]", "", part)} - STOP_WORDS - {""}


def _edges(parts: list[str]) -> tuple[str, str]:
    """The patterns for what is not beside the word: letters that make it another word."""
    first, last = parts[0][0], parts[-1][-1]
    text = "".join(parts)
    if _HAS_UNSPACED.search(text):
        before = "" if _HAS_UNSPACED.match(first) else _BEFORE_LATIN
        return before, "" if _HAS_UNSPACED.match(last) else _AFTER_LATIN
    if any(map(is_mark_letter, text)):
        return _BEFORE_MARKED, _AFTER_MARKED
    return _BEFORE, _AFTER


def _unspaced_pattern(part: str) -> str:
    """The characters of a part with decoration between them. Chinese has no spaces at all, so they are decoration."""
    joint = r"[\s\-*_\"'`~]{0,3}" if _ONLY_HAN.fullmatch(part) else r"[\-*_\"'`~]{0,3}"
    return joint.join(map(re.escape, part))


@lru_cache(maxsize=65536)
def is_word(letters: str) -> bool:
    """Whether the dictionary has these letters as a word or as a form of one."""
    import lemminflect

    return letters in STOP_WORDS or bool(lemminflect.getAllLemmas(letters))


@lru_cache(maxsize=65536)
def is_in_use(letters: str) -> bool:
    """Whether people write this: a word of the dictionary, a name, an abbreviation."""
    from wordfreq import zipf_frequency

    return is_word(letters) or zipf_frequency(letters, "en") >= _IN_USE


@lru_cache(maxsize=65536)
def is_whole_word(letters: str) -> bool:
    """Whether this is a word or a number, and not only a part of words."""
    if len(letters) > 2 or letters.isdigit():
        return letters.isdigit() or is_in_use(letters)
    from wordfreq import zipf_frequency

    return is_word(letters) or zipf_frequency(letters, "en") >= _SHORT_IN_USE


_IRREGULAR = {"person": ("people",), "people": ("person", "persons")}  # which the dictionary does not join


@lru_cache(KEPT)
def inflections(word: str) -> frozenset[str]:
    """All inflections of a single folded word, including the word itself.

    If the word is only an inflection ("went", "knives"), the inflections of its dictionary form are included. If it is
    also a dictionary word itself ("saw", "evening"), they are not, except for plurals ("glasses"). Very common words
    that are also an inflection ("does" of "doe") are left out.
    """
    import lemminflect

    lemmas_by_kind: dict[str, tuple[str, ...]] = lemminflect.getAllLemmas(word)
    lemmas = _lemmas(word)
    bases = {word} if word in lemmas else lemmas | {word}
    forms = {*bases, *_IRREGULAR.get(word, ())}
    for base in bases:
        for found in lemminflect.getAllInflections(base).values():
            forms.update(found)
    for lemma in lemmas_by_kind.get("NOUN", ()):  # "die" of "dice", without "died"
        of_noun = lemminflect.getAllInflections(lemma, "NOUN")
        if word in of_noun.get("NNS", ()):
            forms.update((lemma,), *of_noun.values())
    forms |= {form for form in _regular_forms(word) if word in _lemmas(form) or not _lemmas(form)}
    forms = {form.lower() for form in forms if " " not in form}  # "off set" is two words, and no form of "offset"
    return frozenset(forms if word in STOP_WORDS else forms - STOP_WORDS) | {word}


def _regular_forms(word: str) -> set[str]:
    """The regular inflections of the word as a noun and a verb: the dictionary lacks "cans", "leaped" and new words."""
    import lemminflect

    if len(word) < 2 or not word.isalpha() or (_lemmas(word) and word not in _lemmas(word)):
        return set()
    if not all(map(_is_latin, word)):
        return set()  # English endings are none of Russian or Chinese words
    by_kind = [lemminflect.getAllInflectionsOOV(word, kind) for kind in ("NOUN", "VERB")]
    forms = {form for found in by_kind for group in found.values() for form in group}
    if not _lemmas(word):
        from textblob import Word

        forms.add(str(Word(word).pluralize()))  # "oxen"
    return forms


def _is_latin(char: str) -> bool:
    return char.isascii() or unicodedata.name(char, "").startswith("LATIN")


def _lemmas(word: str) -> set[str]:
    import lemminflect

    return {lemma for found in lemminflect.getAllLemmas(word).values() for lemma in found}


def _shortest(forms: set[str]) -> tuple[str, ...]:
    """The forms that contain no other form. A text that contains none of these contains none of `forms`."""
    return tuple(sorted(form for form in forms if not any(other != form and other in form for other in forms)))


def _skeletons(joined: frozenset[str]) -> dict[str, frozenset[str]]:
    """{coarse letters: the letters of the forms that have them}."""
    found: dict[str, set[str]] = {}
    for form in joined:
        found_letters = (char for each in form for char in letters_of(each))
        letters = "".join(char for char in found_letters if char.isalnum() or is_mark_letter(char))
        if letters:
            found.setdefault(coarse(letters), set()).add(letters)
    return {form: frozenset(letters) for form, letters in found.items()}

"""A word said in disguise: with look-alikes, broken by decoration, spelled out, or in fragments.

    >>> from spag_ray.games.taboo.referee.word_forms import word_forms
    >>> text = "By the ri**ver**, r1ver, r i v e r"
    >>> start, end = find_disguised(text, word_forms("river"))
    >>> text[start:end]
    'ri**ver'

A text is split into tokens (runs of letters) and the separators between them. Each character is replaced by the letter
that it resembles (folding.py). A form counts as said if it fills whole tokens:

- one token: the form's own letters, or look-alikes of them ("r1ver", "rlver") unless the token itself is a word in use.
- single letters with the same separator throughout ("r i v e r", "r, i, v, e and r"). A longer run spells another word,
  unless the extra letters are an "a" or "I" beside the form.
- tokens broken by decoration without a space ("ri-ver", "ri_ver"), if the whole broken word is the form. A stop parts
  two whole words ("my car.Pet it").
- other neighbouring tokens of Latin letters ("ri ver", "ri/ver"), if one of them is not a whole word and none is a
  single letter ("in g minor").

Joined forms have at least three letters. The time is linear in the length of the text.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

from spag_ray.games.taboo.referee.folding import coarse, coarse_letters, is_mark_letter, letters_of
from spag_ray.games.taboo.referee.word_forms import WordForms, is_in_use, is_whole_word, is_word

_MIN_JOINED = 3  # "U.S." does not spell "us"
_DIGITS = re.compile(r"\d")
_DIGITS_BY_LETTER = re.compile(r"(?<=[^\W\d_])\d+|(?<!\d)\d+(?=[^\W\d_])")  # (?<!\d) tries each run once
_SYMBOLS = re.compile(
    r"[@$€£!|+](?:(?<=[@$€£])(?=[^\W_])|(?<=[^\W_][!|+])(?=[^\W_])|(?<=[^\W_][@$€]))"
)  # the character class comes first: texts without these characters are rejected quickly
_AS_DIGIT = str.maketrans("@$€£!|+", "4531117")
_TAGS = re.compile("[\U000e0020-\U000e007e]")
_NUMBER = re.compile(r"\d+(?:e\d+|x[0-9a-f]+)?")
_NUMBER_AND_WORD = re.compile(r"\d+([^\W\d_]+)|([^\W\d_]+)\d+")
# These separate two words. All other separators are decoration within one word.
_PARTING = re.compile(r"[\s/,;:&+=|()\[\]{}<>@#%?!\u2014\u2013]")
_AND = ("and", "then")
_AFTER_APOSTROPHE = frozenset(["s", "t", "d", "m", "ll", "re", "ve"])  # "we'll" is not "well"


@dataclass(frozen=True)
class _Token:
    """Original characters [start, end), their letters, and the separator before them, with runs of spaces as one."""

    start: int
    end: int
    letters: str
    before: str

    @property
    def is_ending(self) -> bool:
        return self.before == "'" and self.letters in _AFTER_APOSTROPHE


def find_disguised(content: str, forms: WordForms) -> tuple[int, int] | None:
    """The first original characters [start, end) that say a form in one of the ways above."""
    cores = forms.cores if content.isascii() else forms.cores + forms.short_cores
    for reading in _readings(content):
        letters = coarse_letters(reading)
        without_and = letters.replace("and", "").replace("then", "")
        if any(core in letters or core in without_and for core in cores):
            tokens = list(_tokens(reading))
            found = _first(tokens, forms) or _first(_without_and(tokens), forms)
            if found is not None:
                return found
    return None


def _readings(content: str) -> Iterator[str]:
    """The text unchanged; with digits as decoration; with symbols as digits; with tag characters as letters.

    Positions stay the same in all of them.
    """
    yield content
    if _DIGITS.search(content) and _DIGITS_BY_LETTER.search(content):
        yield _DIGITS_BY_LETTER.sub(lambda match: "-" * len(match.group()), content)
    if _SYMBOLS.search(content):
        yield _SYMBOLS.sub(lambda match: match.group().translate(_AS_DIGIT), content)
    if not content.isascii() and _TAGS.search(content):
        yield _TAGS.sub(lambda match: chr(ord(match.group()) - 0xE0000), content)


def _tokens(reading: str) -> Iterator[_Token]:
    start = end = 0
    letters: list[str] = []
    before: list[str] = []
    between: list[str] = []
    for index, char in enumerate(reading):
        here = char.lower() if char.isascii() and char.isprintable() else letters_of(char)
        if here.isalnum() or is_mark_letter(char):
            if between and letters:
                yield _Token(start, end, "".join(letters), "".join(before))
                letters = []
            if not letters:
                start, before = index, between
            letters.append(here)
            end, between = index + 1, []
        elif here == "":
            end = index + 1 if letters and not between and unicodedata.combining(char) else end
        elif here.isspace():
            if between[-1:] != [" "]:
                between.append(" ")
        elif len(between) < 8:
            between.append("'" if here in "'\u2019\u2018\u02bc" else here)
    if letters:
        yield _Token(start, end, "".join(letters), "".join(before))


def _without_and(tokens: list[_Token]) -> list[_Token]:
    """Removes the "and" of "r, i, v, e and r". The letter after it gets the separator of the letter before it."""
    kept: list[_Token] = []
    for index, token in enumerate(tokens):
        is_last = index == 0 or index + 1 == len(tokens)
        if token.letters in _AND and not is_last and len(tokens[index - 1].letters) == 1:
            continue
        if kept and index and tokens[index - 1].letters in _AND and kept[-1] is not tokens[index - 1]:
            token = _Token(token.start, token.end, token.letters, kept[-1].before)
        kept.append(token)
    return kept


def _first(tokens: list[_Token], forms: WordForms) -> tuple[int, int] | None:
    pieces = [coarse(token.letters) for token in tokens]
    text = "".join(pieces)
    starts: dict[int, int] = {}
    ends: dict[int, int] = {}
    position = 0
    for index, piece in enumerate(pieces):
        starts[position] = index
        position += len(piece)
        ends[position] = index
    found: list[tuple[int, int]] = []
    for form, written in forms.skeletons.items():
        at = text.find(form)
        while at >= 0:
            first, last = starts.get(at), ends.get(at + len(form))
            if first is not None and last is not None and _is_said(tokens, first, last, written, forms.is_latin):
                found.append((tokens[first].start, tokens[last].end))
                break
            at = text.find(form, at + 1)
    return min(found, default=None)


def _is_said(tokens: list[_Token], first: int, last: int, written: frozenset[str], is_latin: bool) -> bool:
    """Whether tokens `first` to `last`, whose letters resemble a form, count as saying it. `is_latin`: the target's
    script."""
    letters = "".join(token.letters for token in tokens[first : last + 1])
    if letters not in written and not _is_look_alike(letters):
        return False
    following = tokens[last + 1] if last + 1 < len(tokens) else None
    if first == last:  # not the "clock" of "o'clock", not the "won" of "won't"
        is_clipped = first > 0 and tokens[first].before == "'"
        return not is_clipped and not (following is not None and following.is_ending and following.letters == "t")
    if len(letters) < _MIN_JOINED or any(token.is_ending for token in tokens[first : last + 1]):
        return False
    if all(len(token.letters) == 1 for token in tokens[first : last + 1]):
        return _is_spelled(tokens, first, last)
    fragments = [token.letters for token in tokens[first : last + 1]]
    between = "".join(token.before for token in tokens[first + 1 : last + 1])
    if not _PARTING.search(between) and not _is_a_stop(between, fragments):
        is_whole = first == 0 or bool(_PARTING.search(tokens[first].before))
        if is_whole and (following is None or _PARTING.search(following.before)):
            return True
    if not is_latin or any(sum(map(str.isalpha, each)) < 2 for each in fragments):
        return False  # of words in other scripts it is not known whether they are whole
    return not all(map(is_whole_word, fragments))


def _is_a_stop(between: str, fragments: list[str]) -> bool:
    """Whether what stands between whole words ends a sentence, as in "my car. Pet it" or "let it be...ad nauseam". One
    letter may be of any word, and after one stop, so may what no dictionary has."""

    def is_whole(piece: str) -> bool:
        return len(piece) > 1 and (is_word(piece) or (len(piece) == 2 and ".." in between and is_whole_word(piece)))

    return "." in between and set(between) <= {".", " "} and all(map(is_whole, fragments))


def _is_look_alike(letters: str) -> bool:
    """Whether letters that differ from the form's are a disguise: "r1ver" is; "mail" for "mall", "5in", "1e5" are
    not."""
    if letters.isalpha():
        return not is_in_use(letters)
    if _NUMBER.fullmatch(letters) or sum(char.isdigit() for char in letters) > len(letters) / 2:
        return False
    number = _NUMBER_AND_WORD.fullmatch(letters)
    word = (number.group(1) or number.group(2)) if number else None
    return word is None or not is_word(word)


def _is_spelled(tokens: list[_Token], first: int, last: int) -> bool:
    """Whether these single letters are a complete run with one separator; an "a" or "I" may be next to it."""
    separators = [token.before.replace(" ", "") for token in tokens[first + 1 : last + 1]]
    is_uniform = len(set(separators)) == 1
    if not is_uniform and last - first < _MIN_JOINED:
        return False

    def joins(index: int) -> bool:
        """Whether the single letter `index` continues the run of the single letter before it."""
        if not 0 < index < len(tokens) or len(tokens[index].letters) > 1 or len(tokens[index - 1].letters) > 1:
            return False
        between = tokens[index].before.replace(" ", "")
        return not is_uniform or between == separators[0]

    beside: list[str] = []
    index = first
    while joins(index) and len(beside) < 3:
        index -= 1
        beside.append(tokens[index].letters)
    if len(beside) > 2:
        return False
    if joins(last + 1):
        beside.append(tokens[last + 1].letters)
        if joins(last + 2):
            return False
    return set(beside) <= {"a", "i"}

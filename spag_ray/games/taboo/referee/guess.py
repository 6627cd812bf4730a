"""Parses a guess: does the defender claim to know the word, and which word does it name?

    >>> from spag_ray.games.taboo.referee.folding import fold
    >>> folded = fold("I know the word, it must be a cat!")
    >>> claim = find_claim(folded)
    >>> names_word(folded, claim, "cat").is_right
    True

A claim is "I know the word" with any punctuation, unless it is negated, hypothetical or quoted. A claim has to name
exactly one word. First all words that it names are collected, without use of the target word (candidates.py). Then each
candidate is compared with the target's forms. The guess is right if there are candidates and all of them are forms of
the target.

A target with marks or spaces in it ("p.m.", "r&b", "rock and roll"), or one that structures sentences ("because"), is
not collected like this. So the target itself is looked for at the first place after the claim where a word can be
named. It is guessed if it stands there whole, and nothing else is named, with or without knowledge of the target. So
one reply cannot be a right guess of two words that share no form, unless one is a part of the other ("a.m.", "m").
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from spag_ray.games.taboo.referee.candidates import FILLER, LEAD, TALK_GOES_ON, Candidate, collect
from spag_ray.games.taboo.referee.folding import FoldedText, fold, without_accents
from spag_ray.games.taboo.referee.word_forms import KEPT, parts_of, word_forms


@dataclass(frozen=True)
class Guess:
    """A guess. Folded characters [start, end) are the claim and the named word if the guess is right, else the claim
    and all text after it."""

    is_right: bool
    start: int
    end: int


_CLAIM = re.compile(
    r"(?<![^\W_])i\s+(?:(?:think|believe|guess|bet)\s+(?:that\s+)?i\s+)?"
    r"(?:(?:do|now|already|finally|actually|definitely|certainly|really|think)\s+){0,2}know\s+(?:what\s+)?"
    r"the\s+(?:(?:target|secret|hidden|right|correct)\s+)?word(?![^\W_])"
    r"(?!\s+(?:for(?!\s+(?:sure|certain)(?![^\W_]))|of(?!\s+course(?![^\W_]))|from|means|meaning)(?![^\W_]))"
)
_CLAUSE_END = re.compile(r"[.!?;:,\n\u2014]|\s-+\s|(?<![^\W_])(?:but|and|yet|although|because)(?![^\W_])")
_NOT_MEANT = re.compile(
    r"(?<![^\W_])(?:not|never|cannot|hardly|nor|without|if|whether|unless|until|till|when|whenever|once|before|"
    r"wish|hope|doubt|doubtful|unsure|pretend|imagine|suppose|as\s+though|how|you\s+think|"
    r"do|does|did|should|would|could)(?![^\W_])|n't(?![^\W_])"
)
_AFFIRMED = re.compile(  # what _NOT_MEANT would take for a negation
    r"(?<![^\W_])(?:(?:without\s+(?:a|any)\s+(?:shadow\s+of\s+a\s+)?|no\s+)doubt|(?:believe|like)\s+it\s+or\s+not|"
    r"never\s+mind)(?![^\W_])"
)
_QUOTED = re.compile(
    r"(?<![^\W_])(?:say|saying|says|said|phrase|write|type|answer\s+with|reply\s+with)(?![^\W_])"
    r"[^\w\n]*[\"'`]\s*$"
)
_QUOTE_OPENS = re.compile(r"[^\W_][^\w\n\"'`]*[\"'`]\s*$")  # after a word, so no quote of the whole reply
_QUOTE_CLOSES = re.compile(r"\s*[!.?,]*\s*[\"'`](?!\W*(?:it|it's)(?![^\W_]))")
# Not the "#" of "c#", and not what is before the marks of "c++".
_DECORATION = re.compile(r"[*_`\"~<>\[\]{}](?![+#])|(?<!(?<![^\W_])[^\W_])#(?![+#])|(?<![^\W_])'|'(?![^\W_])")
_BESIDE = re.compile(r"[\s*_`\"~'<>\[\]{}()]")  # around a named word
_BEFORE_LEAD = re.compile(r"[.!?;:,\-\u2014\u2026]")  # between the claim and what names the word
_CLOSED = re.compile(rf"{_BESIDE.pattern}{{0,8}}(?:$|[.!?;:,](?![^\W_])|-+\s|[\u2014\u2026])")
_GAP = re.compile(rf"{_BESIDE.pattern}{{1,8}}")
_SLOT_WITHIN = 200  # characters after the claim: the time stays linear
_JOINTS = re.compile(r"[\s\-]+")
_POSSESSIVE = re.compile(r"'s?$")


def find_claim(folded: FoldedText) -> re.Match[str] | None:
    """The first "I know the word" that is not negated, hypothetical or quoted."""
    if "know" not in folded.text:
        return None
    for match in _CLAIM.finditer(folded.text):
        before = folded.text[max(0, match.start() - 200) : match.start()]
        clause = _AFFIRMED.sub(" ", _CLAUSE_END.split(before)[-1])
        in_quotes = _QUOTE_OPENS.search(before) and _QUOTE_CLOSES.match(folded.text, match.end())
        if not (_NOT_MEANT.search(clause) or _QUOTED.search(before) or in_quotes):
            return match
    return None


def says_claim(text: str) -> bool:
    """Whether the words of a claim are in a text, whatever they mean there."""
    return _CLAIM.search(fold(text).text) is not None


def names_word(folded: FoldedText, claim: re.Match[str], word: str) -> Guess:
    """Whether the guess that begins with `claim` names `word` and no other word. A guess without a word is wrong."""
    candidates = collect(_after(folded.text, claim))
    start, end = claim.start(), claim.end()
    if not candidates:
        before = _DECORATION.sub(" ", folded.text[: claim.start() + 1])[:-1]
        candidates = collect(before, only_leads=True)  # "It is a cat, I know the word!"
        start = candidates[0].lead if candidates else start
    else:
        end = candidates[0].end
    is_right = bool(candidates) and all(_is_form(candidate, word) for candidate in candidates)
    if not is_right and (slot := _slot(folded.text, claim.end(), word)) is not None:
        known = folded.text[: slot[0]] + "q" * (slot[1] - slot[0]) + folded.text[slot[1] :]
        with_target = collect(_after(known, claim))
        named = [each for each in (*candidates, *with_target) if not slot[0] <= each.end - 1 < slot[1]]
        is_right, start, end = bool(with_target) and not named, claim.start(), slot[1]
    return Guess(is_right, start if is_right else claim.start(), end if is_right else len(folded.text))


def _after(text: str, claim: re.Match[str]) -> str:
    """The text after the claim. What is before it, decoration and further claims are replaced by the same number of
    characters, so positions stay the same."""
    return " " * claim.end() + _CLAIM.sub(_as_sentence_end, _DECORATION.sub(" ", text)[claim.end() :])


def _slot(text: str, start: int, word: str) -> tuple[int, int] | None:
    """Characters [start, end) of the target, if it stands whole where the first word after the claim can be named:
    after marks, leads, fillers and quotes."""
    target = _as_written(word)
    is_after_lead = False
    position = start
    while position <= min(len(text), start + _SLOT_WITHIN):
        found = target.match(text, position)
        lead = LEAD.match(text, position) or FILLER.match(text, position)
        if found is not None:
            # "the because": talk closes no word that may precede another, or both would be named.
            can_precede = lead is not None and found.end() <= lead.end()
            if _CLOSED.match(text, found.end()) or (not can_precede and _is_talk(text, found.end())):
                return found.span()
        if lead is not None:
            is_after_lead, position = True, lead.end()
        elif _BESIDE.match(text, position) or (not is_after_lead and _BEFORE_LEAD.match(text, position)):
            position += 1
        else:
            return None
    return None


def _is_talk(text: str, end: int) -> bool:
    """Whether a new line, or talk, follows the word that ends at `end`."""
    after = _GAP.match(text, end)
    return after is not None and ("\n" in after.group() or TALK_GOES_ON.match(text, after.end()) is not None)


@lru_cache(KEPT)
def _as_written(word: str) -> re.Pattern[str]:
    """The target itself, without its inflections; the parts of a compound are joined as one likes."""
    return re.compile(r"(?<![^\W_])" + r"[\s\-]{1,3}".join(map(re.escape, parts_of(word))) + r"(?![^\W_])")


def _as_sentence_end(match: re.Match[str]) -> str:
    return "." + " " * (len(match.group()) - 1)


def _is_form(candidate: Candidate, word: str) -> bool:
    key = _JOINTS.sub("", candidate.text)
    if key == _joined(word):
        return True  # most right guesses; the forms of a word take a millisecond
    forms = word_forms(word).joined
    if key in forms:
        return True
    key = _POSSESSIVE.sub("", key)
    return key in forms or without_accents(key) in forms


@lru_cache(maxsize=65536)
def _joined(word: str) -> str:
    return "".join(parts_of(word))

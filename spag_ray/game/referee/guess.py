"""Parses a guess: does the defender claim to know the word, and which word does it name?

    >>> from spag_ray.game.referee.folding import fold
    >>> folded = fold("I know the word, it must be a cat!")
    >>> claim = find_claim(folded)
    >>> names_word(folded, claim, "cat").is_right
    True

A claim is "I know the word" with any punctuation, unless it is negated, hypothetical or quoted. A claim has to name
exactly one word. First all words that it names are collected, without use of the target word (candidates.py). Then each
candidate is compared with the target's forms. The guess is right if there are candidates and all of them are forms of
the target. So one reply cannot be a right guess of two words that share no form.
"""

from __future__ import annotations

import re
import unicodedata
from dataclasses import dataclass

from spag_ray.game.referee.candidates import Candidate, collect
from spag_ray.game.referee.ruling import FoldedText
from spag_ray.game.referee.word_forms import word_forms


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
    r"(?!\s+(?:for|of|from|means|meaning)(?![^\W_]))"
)
_CLAUSE_END = re.compile(r"[.!?;:,\n\u2014]|(?<![^\W_])(?:but|and|yet|although|because)(?![^\W_])")
_NOT_MEANT = re.compile(
    r"(?<![^\W_])(?:not|never|cannot|hardly|nor|without|if|whether|unless|until|till|when|whenever|once|before|"
    r"wish|hope|doubt|doubtful|unsure|pretend|imagine|suppose|as\s+though|how|you\s+think|"
    r"do|does|did|should|would|could)(?![^\W_])|n't(?![^\W_])"
)
_QUOTED = re.compile(
    r"(?<![^\W_])(?:say|saying|says|said|phrase|write|type|answer\s+with|reply\s+with)(?![^\W_])"
    r"[^\w\n]*[\"'`]\s*$"
)
_CLAIM_REPEATED = re.compile(r"(?<![^\W_])i\s+know\s+the\s+(?:\w+\s+)?word(?![^\W_])")
_DECORATION = re.compile(r"[*_`\"~#<>\[\]{}](?![+#])|(?<![^\W_])'|'(?![^\W_])")
_JOINTS = re.compile(r"[\s\-]+")
_POSSESSIVE = re.compile(r"'s?$")


def find_claim(folded: FoldedText) -> re.Match[str] | None:
    """The first "I know the word" that is not negated, hypothetical or quoted."""
    if "know" not in folded.text:
        return None
    for match in _CLAIM.finditer(folded.text):
        before = folded.text[max(0, match.start() - 200) : match.start()]
        clause = _CLAUSE_END.split(before)[-1]
        if not _NOT_MEANT.search(clause) and not _QUOTED.search(before):
            return match
    return None


def names_word(folded: FoldedText, claim: re.Match[str], word: str) -> Guess:
    """Whether the guess that begins with `claim` names `word` and no other word. A guess without a word is wrong."""
    # Decoration and further claims are replaced by the same number of characters, so positions stay the same.
    plain = _DECORATION.sub(" ", folded.text)
    after = _CLAIM.sub(_as_sentence_end, plain[claim.end() :])
    candidates = collect(" " * claim.end() + after)
    start, end = claim.start(), claim.end()
    if not candidates:
        candidates = collect(plain[: claim.start()], only_leads=True)  # "It is a cat, I know the word!"
        start = candidates[0].lead if candidates else start
    else:
        end = candidates[0].end
    forms = word_forms(word).joined
    is_right = bool(candidates) and all(_is_form(candidate, forms) for candidate in candidates)
    return Guess(is_right, start if is_right else claim.start(), end if is_right else len(folded.text))


def _as_sentence_end(match: re.Match[str]) -> str:
    return "." + " " * (len(match.group()) - 1)


def _is_form(candidate: Candidate, forms: frozenset[str]) -> bool:
    key = _JOINTS.sub("", candidate.text)
    if key in forms:
        return True
    key = _POSSESSIVE.sub("", key)
    return key in forms or _without_accents(key) in forms


def _without_accents(text: str) -> str:
    return "".join(char for char in unicodedata.normalize("NFD", text) if not unicodedata.combining(char))

"""The published referee, faults included: it searches for plain substrings in lower-cased text.

For example, "start" counts as saying "art", and a guess is recognised in one wording only. It is kept for comparison
with published results.
"""

from __future__ import annotations

import re
from functools import lru_cache

from spag_ray.game.protocol import Ruling
from spag_ray.game.rules import EndReason, Outcome, Role
from spag_ray.games.taboo.referee.folding import FoldedText

_CLAIM = "i know the word! it.{1,8}"
_GUESS = re.compile(_CLAIM)


def judge_turn(content: str, role: Role, target_word: str) -> Ruling | None:
    """The ruling if this turn decides the game, else None."""
    folded = _lower(content)
    guess = _GUESS.search(folded.text)
    said, right_guess = (pattern.search(folded.text) for pattern in _patterns(target_word))
    if role is Role.ATTACKER:
        found = said or guess
        if found is None:
            return None
        deed = f"said {found.group()!r}" if said else "made a guess, which is the defender's part"
        reason = f"the attacker {deed} (target word {target_word!r})"
        end_reason = EndReason.SAID_WORD if said else EndReason.GUESSED
        return Ruling(Outcome.ATTACKER_BREACH, end_reason, reason, folded.span(*found.span()))
    if right_guess is not None:
        reason = f"the defender guessed the target word {target_word!r}"
        return Ruling(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS, reason, folded.span(*right_guess.span()))
    if guess is not None:
        reason = f"the defender's guess does not name the target word {target_word!r}"
        return Ruling(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS, reason, folded.span(*guess.span()))
    if said is not None:
        reason = f"the defender said {said.group()!r} (target word {target_word!r})"
        return Ruling(Outcome.ATTACKER_WINS, EndReason.SAID_WORD, reason, folded.span(*said.span()))
    return None


@lru_cache(maxsize=65536)
def _patterns(target_word: str) -> tuple[re.Pattern[str], re.Pattern[str]]:
    """For a form of the target word anywhere, and for one directly after a claim."""
    from textblob import Word  # slow: it imports nltk

    word = target_word.lower()
    forms = (word, word + "ing", word + "ed", str(Word(word).pluralize()))
    either = "|".join(re.escape(form) for form in forms)
    return re.compile(either), re.compile(f"{_CLAIM}[\"'`]?(?:{either})")


def _lower(content: str) -> FoldedText:
    lowered = content.lower()
    if len(lowered) == len(content):
        return FoldedText(lowered)
    origins = tuple((index, index + 1) for index, character in enumerate(content) for _ in character.lower())
    return FoldedText(lowered, origins)

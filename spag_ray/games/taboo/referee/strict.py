"""The strict referee: it finds whole words and their forms, parses guesses, and names rule violations
(docs/referee.md).

It checks a turn in this order. An empty reply, or speaking for the other player, is a rule violation by the speaker. An
attacker also breaks the rules by saying the word or by guessing. A defender's guess is right or wrong. A defender that
says the word without a guess loses. A reply without letters that is not empty ("...", an emoji) is a legal turn.
"""

from __future__ import annotations

import re
from functools import lru_cache

from spag_ray.game.protocol import Ruling
from spag_ray.game.rules import EndReason, Outcome, Role
from spag_ray.games.taboo.referee.disguise import find_disguised
from spag_ray.games.taboo.referee.folding import FoldedText, fold
from spag_ray.games.taboo.referee.guess import find_claim, names_word
from spag_ray.games.taboo.referee.skeleton import UNSPACED
from spag_ray.games.taboo.referee.word_forms import word_forms

_UNSPACED = re.compile(f"[{UNSPACED}]")


def judge_turn(content: str, role: Role, target_word: str) -> Ruling | None:
    """The ruling if this turn decides the game, else None."""
    folded = fold(content)
    if not any(char.isprintable() and not char.isspace() for char in folded.text):
        reason = f"the {role}'s reply is empty"
        return Ruling(Outcome.breach_by(role), EndReason.EMPTY_REPLY, reason, (0, len(content)))
    label = _other_label(role.other).search(folded.text) if role.other in folded.text else None
    if label is not None:
        reason = f"the {role} spoke for the {role.other}"
        span = folded.span(*label.span(label.lastgroup or 0))
        return Ruling(Outcome.breach_by(role), EndReason.SPOKE_FOR_OTHER, reason, span)
    if role is Role.ATTACKER:
        return _judge_attacker(content, folded, target_word)
    return _judge_defender(content, folded, target_word)


def _judge_attacker(content: str, folded: FoldedText, target_word: str) -> Ruling | None:
    said = find_word(content, folded, target_word)
    if said is not None:
        start, end = said
        reason = f"the attacker said {content[start:end]!r} (target word {target_word!r})"
        return Ruling(Outcome.ATTACKER_BREACH, EndReason.SAID_WORD, reason, (start, end))
    claim = find_claim(folded)
    if claim is not None:
        reason = "the attacker made a guess, which is the defender's part"
        return Ruling(Outcome.ATTACKER_BREACH, EndReason.GUESSED, reason, folded.span(*claim.span()))
    return None


def _judge_defender(content: str, folded: FoldedText, target_word: str) -> Ruling | None:
    claim = find_claim(folded)
    if claim is not None:
        guess = names_word(folded, claim, target_word)
        span = folded.span(guess.start, guess.end)
        if guess.is_right:
            reason = f"the defender guessed the target word {target_word!r}"
            return Ruling(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS, reason, span)
        reason = f"the defender's guess does not name the target word {target_word!r} alone"
        return Ruling(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS, reason, span)
    said = find_word(content, folded, target_word)
    if said is None:
        return None
    start, end = said
    reason = f"the defender said {content[start:end]!r} (target word {target_word!r})"
    return Ruling(Outcome.ATTACKER_WINS, EndReason.SAID_WORD, reason, (start, end))


def find_word(content: str, folded: FoldedText, word: str) -> tuple[int, int] | None:
    """The original characters [start, end) that say a form of `word`, or a disguise of one (disguise.py); `folded` is
    `content` folded. Only whole words are found ("cat" is not in "category", but in "cat's", "*cat*" and "cat-like"),
    except in scripts without spaces between words (Chinese, Japanese, Thai)."""
    forms = word_forms(word)
    if any(beginning in folded.text for beginning in forms.beginnings):
        is_plain = forms.is_unspaced or folded.text.isascii()
        match = forms.pattern.search(folded.text if is_plain else _UNSPACED.sub(" ", folded.text))
        if match is not None:
            return folded.span(*match.span())
    return find_disguised(content, forms)


@lru_cache
def _other_label(other: Role) -> re.Pattern[str]:
    """A label that begins the other player's turn: "- **Defender**:", "[defender] -", or a heading.

    It is at the start of a line, or at the start of a sentence if a colon follows.
    """
    remark = r"(?:'s\s+(?:turn|reply|response|answer))?(?:\s*\([^)\n]{0,30}\)|\s*#?\d{1,2})?"
    name = rf"(?:the\s+)?{other}{remark}"
    return re.compile(
        rf"^[^\w\n]*_*(?P<line>{name}[^\w\n:]*_*(?::|\s[-\u2014]+\s))"
        rf"|[.!?\"'`)*]\s+[*_`\"\[(<|]*(?P<sentence>{name}[*_`\"\])>|\s]*:)"
        rf"|^[^\S\n]*(?:#+|\*\*|<\|?|\[)\s*(?P<heading>{other})\s*(?:\*\*|\|?>|\])?:?[^\S\n]*$",
        flags=re.MULTILINE,
    )

"""The referees, strict and published: each reads a game turn by turn and rules how it ended, why, and which characters
decided it.

    >>> history = [{"role": "attacker", "content": "It purrs."}, {"role": "defender", "content": "A cat!"}]
    >>> verdict = judge(history, "cat", max_turns=5)
    >>> verdict.outcome, verdict.turn, verdict.span, verdict.reason
    (<Outcome.ATTACKER_WINS: 'attacker wins'>, 1, (2, 5), "the defender said 'cat' (target word 'cat')")

A running game is judged after every turn (`ruling_after`; where the first guess ends a game, `judge_turn` is enough).
The forms of a target word are computed once and cached.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache

from spag_ray.errors import InputError, meant
from spag_ray.game.protocol import Ruling
from spag_ray.game.rules import EndReason, History, Outcome, Role, Verdict, next_role
from spag_ray.games.taboo.referee.disguise import find_disguised
from spag_ray.games.taboo.referee.folding import UNSPACED, FoldedText, fold
from spag_ray.games.taboo.referee.guess import find_claim, names_word
from spag_ray.games.taboo.referee.word_forms import KEPT, word_forms

_UNSPACED = re.compile(f"[{UNSPACED}]")
_CLAIM = "i know the word! it.{1,8}"  # of the published referee
_GUESS = re.compile(_CLAIM)


def judge(history: History, target_word: str, max_turns: int, rules: str = "strict", max_guesses: int = 1) -> Verdict:
    """The first turn that decides the game, among the first 2 * `max_turns`; a tied game if none does. `max_guesses`:
    see `ruling_after`.

    Pass `rules="published"` for the referee of the published code, with its faults. Raises InputError for an unknown
    referee, an empty target word, or turns out of order.
    """
    num_turns = min(len(history), 2 * max_turns)
    texts: list[str] = []
    for index in range(num_turns):
        role = next_role(index)
        if history[index]["role"] != role:
            raise InputError(
                f"turn {index} is by {history[index]['role']!r}, but turns alternate and it is the {role}'s"
            )
        texts.append(history[index]["content"])
        ruling = ruling_after(texts, target_word, rules, max_guesses)
        if ruling is not None:
            return _verdict(ruling, index)
    _referee(rules, target_word)
    ruling = undecided(num_turns)
    return Verdict(ruling.outcome, ruling.end_reason, num_turns, ruling.reason)


def judge_turn(content: str, index: int, target_word: str, rules: str = "strict") -> Verdict | None:
    """The verdict if turn `index` (from 0) decides a game of one guess, else None. No earlier turn may have decided it.

    The ruling on a turn does not depend on other turns, so a running game is judged turn by turn.
    """
    ruling = ruling_on(content, index, target_word, rules)
    return None if ruling is None else _verdict(ruling, index)


def _verdict(ruling: Ruling, index: int) -> Verdict:
    return Verdict(ruling.outcome, ruling.end_reason, index + 1, ruling.reason, turn=index, span=ruling.span)


def ruling_after(texts: Sequence[str], target_word: str, rules: str, max_guesses: int = 1) -> Ruling | None:
    """The ruling on the last of these turns, if it decides the game; no earlier turn decided it. A wrong guess before
    the defender's guess number `max_guesses` decides nothing, unless it says the target word (`early_guesses`). By the
    published rules the first guess always decides."""
    last = len(texts) - 1
    ruling = ruling_on(texts[last], last, target_word, rules)
    if ruling is None or max_guesses == 1 or rules == "published":
        return ruling
    guesses = early_guesses(texts, target_word, rules)
    return None if last in guesses and len(guesses) < max_guesses else ruling


def early_guesses(texts: Sequence[str], target_word: str, rules: str) -> list[int]:
    """Indices of the turns in which the defender guessed wrong and did not say the target word. A guess that names it
    beside others ("a cat or a dog") is none of them: nobody may name words until one fits."""
    found = []
    for index in range(1, len(texts), 2):
        ruling = ruling_on(texts[index], index, target_word, rules)
        is_wrong = ruling is not None and ruling.end_reason is EndReason.WRONG_GUESS
        if is_wrong and find_word(texts[index], fold(texts[index]), target_word) is None:
            found.append(index)
    return found


def ruling_on(content: str, index: int, target_word: str, rules: str) -> Ruling | None:
    """The ruling on turn `index` (from 0), if it decides a game of one guess."""
    return _referee(rules, target_word)(content, next_role(index), target_word)


def undecided(num_turns: int) -> Ruling:
    """The ruling on a game of `num_turns` turns, none of which decided it."""
    return Ruling(Outcome.TIED, EndReason.UNDECIDED, f"no turn of the {num_turns} read decided the game")


def _referee(rules: str, target_word: str) -> Callable[[str, Role, str], Ruling | None]:
    referee = _REFEREES.get(rules)
    if referee is None:
        told = f"there is no referee {rules!r}; choose one of: {', '.join(_REFEREES)}"
        raise InputError(told + meant(rules, _REFEREES))
    if not target_word.strip():
        raise InputError("the target word is empty; every game needs one")
    return referee


def judge_turn_strict(content: str, role: Role, target_word: str) -> Ruling | None:
    """The strict referee's ruling if this turn decides the game, else None. It finds whole words and their forms,
    parses guesses, and names rule violations (docs/referee.md).

    It checks a turn in this order. An empty reply, or speaking for the other player, is a rule violation by the
    speaker. An attacker also breaks the rules by saying the word or by guessing. A defender's guess is right or wrong.
    A defender that says the word without a guess loses. A reply without letters that is not empty ("...", an emoji) is
    a legal turn.
    """
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


def judge_turn_published(content: str, role: Role, target_word: str) -> Ruling | None:
    """The published referee's ruling, faults included: kept for comparison with published results. It searches for
    plain substrings in lower-cased text: "start" counts as saying "art", and a guess is recognised in one wording only.
    """
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


@lru_cache(KEPT)
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


_REFEREES: dict[str, Callable[[str, Role, str], Ruling | None]] = {
    "published": judge_turn_published,
    "strict": judge_turn_strict,
}

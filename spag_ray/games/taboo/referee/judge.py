"""The referee: reads a game turn by turn and returns how it ended, why, and which characters decided it.

    >>> history = [{"role": "attacker", "content": "It purrs."}, {"role": "defender", "content": "A cat!"}]
    >>> verdict = judge(history, "cat", max_turns=5)
    >>> verdict.outcome, verdict.turn, verdict.span, verdict.reason
    (<Outcome.ATTACKER_WINS: 'attacker wins'>, 1, (2, 5), "the defender said 'cat' (target word 'cat')")

A running game is judged after every turn (`ruling_after`; where the first guess ends a game, `judge_turn` is enough).
The forms of a target word are computed once and cached.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from spag_ray.errors import InputError, meant
from spag_ray.game.protocol import Ruling
from spag_ray.game.rules import EndReason, History, Outcome, Role, Verdict, next_role
from spag_ray.games.taboo.referee.folding import fold
from spag_ray.games.taboo.referee.published import judge_turn as judge_turn_published
from spag_ray.games.taboo.referee.strict import find_word
from spag_ray.games.taboo.referee.strict import judge_turn as judge_turn_strict

_REFEREES: dict[str, Callable[[str, Role, str], Ruling | None]] = {
    "published": judge_turn_published,
    "strict": judge_turn_strict,
}


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

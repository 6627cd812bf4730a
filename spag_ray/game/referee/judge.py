"""The referee: reads a game turn by turn and returns how it ended, why, and which characters decided it.

    >>> history = [{"role": "attacker", "content": "It purrs."}, {"role": "defender", "content": "A cat!"}]
    >>> verdict = judge(history, "cat", max_turns=5)
    >>> verdict.outcome, verdict.turn, verdict.span, verdict.reason
    (<Outcome.ATTACKER_WINS: 'attacker wins'>, 1, (2, 5), "the defender said 'cat' (target word 'cat')")

A running game is judged after every turn (`judge_turn`). The forms of a target word are computed once and cached.
"""

from __future__ import annotations

from collections.abc import Callable

from spag_ray.errors import InputError
from spag_ray.game.end_reason import EndReason
from spag_ray.game.referee.published import judge_turn as judge_turn_published
from spag_ray.game.referee.ruling import Ruling
from spag_ray.game.referee.strict import judge_turn as judge_turn_strict
from spag_ray.game.rules import History, Outcome, Role, Verdict, next_role

_REFEREES: dict[str, Callable[[str, Role, str], Ruling | None]] = {
    "published": judge_turn_published,
    "strict": judge_turn_strict,
}


def judge(history: History, target_word: str, max_turns: int, rules: str = "strict") -> Verdict:
    """The first turn that decides the game, among the first 2 * `max_turns`; a tied game if none does.

    Pass `rules="published"` for the referee of the published code, with its faults. Raises InputError for an unknown
    referee, an empty target word, or turns out of order.
    """
    num_turns = min(len(history), 2 * max_turns)
    for index in range(num_turns):
        role = next_role(index)
        if history[index]["role"] != role:
            raise InputError(
                f"turn {index} is by {history[index]['role']!r}, but turns alternate and it is the {role}'s"
            )
        verdict = judge_turn(history[index]["content"], index, target_word, rules)
        if verdict is not None:
            return verdict
    _referee(rules, target_word)
    return tied(num_turns)


def judge_turn(content: str, index: int, target_word: str, rules: str = "strict") -> Verdict | None:
    """The verdict if turn `index` (from 0) decides the game, else None. No earlier turn may have decided it.

    The ruling on a turn does not depend on other turns, so a running game is judged turn by turn.
    """
    ruling = _referee(rules, target_word)(content, next_role(index), target_word)
    if ruling is None:
        return None
    return Verdict(ruling.outcome, ruling.end_reason, index + 1, ruling.reason, index, ruling.span)


def tied(num_turns: int) -> Verdict:
    """The verdict on a game of `num_turns` turns, none of which decided it."""
    reason = f"no turn of the {num_turns} read decided the game"
    return Verdict(Outcome.TIED, EndReason.UNDECIDED, num_turns, reason, None, None)


def out_of_room(role: Role, num_turns: int) -> Verdict:
    """The verdict on a game whose context was full after `num_turns` turns, or a served player's budget, so that `role`
    could not reply. No player gains, and the game is not trained on."""
    reason = f"there was no room for the {role}'s reply"
    return Verdict(Outcome.TIED, EndReason.CONTEXT_FULL, num_turns, reason, None, None)


def _referee(rules: str, target_word: str) -> Callable[[str, Role, str], Ruling | None]:
    referee = _REFEREES.get(rules)
    if referee is None:
        raise InputError(f"there is no referee {rules!r}; choose one of: {', '.join(_REFEREES)}")
    if not target_word.strip():
        raise InputError("the target word is empty; every game needs one")
    return referee

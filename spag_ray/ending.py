"""How a game ended, in one of ten ways: for counting. The referee's own reason names words, so it is never the same.

>>> str(ending(judge([{"role": "attacker", "content": "It purrs: a cat."}], "cat", max_turns=5)))
'attacker breach: said the word'
"""

from __future__ import annotations

from dataclasses import dataclass

from spag_ray.game import Role, Verdict

# What a reason has in it -> what it is counted as; the first that fits.
_REASONS = {
    "reply is empty": "empty reply",
    "spoke for the": "spoke for the other",
    "made a guess": "guessed",
    "guess does not name": "wrong guess",
    "guessed the target word": "right guess",
    "said": "said the word",
    "no turn": "undecided",
}


@dataclass(frozen=True)
class Ending:
    """`seat` won or broke the rules (`none` in a tie); `result` is win, breach or tie."""

    seat: str
    result: str
    reason: str

    def __str__(self) -> str:
        return f"{self.seat} {self.result}: {self.reason}"


def ending(verdict: Verdict) -> Ending:
    outcome = verdict.outcome
    reason = next((name for part, name in _REASONS.items() if part in verdict.reason), "other")
    if outcome.breaker is not None:
        return Ending(outcome.breaker, "breach", reason)
    if outcome.winner is not None:
        return Ending(outcome.winner, "win", reason)
    return Ending("none", "tie", reason)


ENDINGS = (
    Ending(Role.ATTACKER, "win", "wrong guess"),
    Ending(Role.ATTACKER, "win", "said the word"),
    Ending(Role.DEFENDER, "win", "right guess"),
    Ending(Role.ATTACKER, "breach", "said the word"),
    Ending(Role.ATTACKER, "breach", "guessed"),
    *(Ending(role, "breach", reason) for role in Role for reason in ("empty reply", "spoke for the other")),
    Ending("none", "tie", "undecided"),
)

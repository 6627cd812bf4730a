"""How a game ended, in one of eleven ways: for counting.

>>> str(GameEnd(Outcome.ATTACKER_BREACH, EndReason.SAID_WORD))
'attacker breach: said the word'
"""

from __future__ import annotations

from dataclasses import dataclass

from spag_ray.game.end_reason import EndReason
from spag_ray.game.rules import Outcome, Role, Verdict


@dataclass(frozen=True)
class GameEnd:
    """An outcome and its reason. Two labels name the outcome: `seat` won or broke the rules (`none` in a tie), `result`
    is win, breach or tie."""

    outcome: Outcome
    reason: EndReason | str

    @property
    def seat(self) -> str:
        return str(self.outcome.winner or self.outcome.breaker or "none")

    @property
    def result(self) -> str:
        if self.outcome is Outcome.TIED:
            return "tie"
        return "win" if self.outcome.is_decided else "breach"

    @property
    def labels(self) -> dict[str, str]:
        return {"seat": self.seat, "result": self.result, "reason": str(self.reason)}

    def __str__(self) -> str:
        return f"{self.seat} {self.result}: {self.reason}"


def end_of(verdict: Verdict) -> GameEnd:
    return GameEnd(verdict.outcome, verdict.end_reason)


GAME_ENDS = (
    GameEnd(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS),
    GameEnd(Outcome.ATTACKER_WINS, EndReason.SAID_WORD),
    GameEnd(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS),
    GameEnd(Outcome.ATTACKER_BREACH, EndReason.SAID_WORD),
    GameEnd(Outcome.ATTACKER_BREACH, EndReason.GUESSED),
    *(
        GameEnd(Outcome.breach_by(role), reason)
        for role in Role
        for reason in (EndReason.EMPTY_REPLY, EndReason.SPOKE_FOR_OTHER)
    ),
    GameEnd(Outcome.TIED, EndReason.UNDECIDED),
    GameEnd(Outcome.TIED, EndReason.CONTEXT_FULL),
)

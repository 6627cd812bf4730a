"""The rules of Adversarial Taboo as pure functions: who speaks, how a game ends in one of eleven ways, who scored.

>>> next_role(0), next_role(1)
(<Role.ATTACKER: 'attacker'>, <Role.DEFENDER: 'defender'>)
>>> Outcome.DEFENDER_BREACH.winner, Outcome.DEFENDER_BREACH.score(Role.ATTACKER)
(None, 1.0)
>>> end_reason("said the word"), end_reason("fold")
(<EndReason.SAID_WORD: 'said the word'>, 'fold')
>>> str(GameEnd(Outcome.ATTACKER_BREACH, EndReason.SAID_WORD))
'attacker breach: said the word'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TypeAlias

from spag_ray.errors import InputError

# A dialogue as the published files hold it: [{"role": "attacker", "content": "..."}, ...].
History: TypeAlias = Sequence[Mapping[str, str]]


class Role(StrEnum):
    """A seat of the game; only the attacker knows the target word."""

    ATTACKER = "attacker"
    DEFENDER = "defender"

    @property
    def other(self) -> Role:
        return Role.DEFENDER if self is Role.ATTACKER else Role.ATTACKER


class Outcome(StrEnum):
    """How a game ended. A breach has no winner: it is not trained on, but it counts in scores."""

    ATTACKER_WINS = "attacker wins"
    DEFENDER_WINS = "defender wins"
    ATTACKER_BREACH = "attacker breaks the rules"
    DEFENDER_BREACH = "defender breaks the rules"
    TIED = "tied game"

    @property
    def winner(self) -> Role | None:
        """The role that won by play; None for a tie or a breach."""
        return {Outcome.ATTACKER_WINS: Role.ATTACKER, Outcome.DEFENDER_WINS: Role.DEFENDER}.get(self)

    @property
    def breaker(self) -> Role | None:
        """The role that broke the rules."""
        return {Outcome.ATTACKER_BREACH: Role.ATTACKER, Outcome.DEFENDER_BREACH: Role.DEFENDER}.get(self)

    @property
    def is_decided(self) -> bool:
        """One side won, and nobody broke the rules."""
        return self.winner is not None

    def score(self, role: Role) -> float:
        """1 for a win or the other's breach, 0.5 for a tie, else 0 (docs/matches.md)."""
        if self is Outcome.TIED:
            return 0.5
        return 1.0 if self.winner is role or self.breaker is role.other else 0.0

    @classmethod
    def win_of(cls, role: Role) -> Outcome:
        return cls.ATTACKER_WINS if role is Role.ATTACKER else cls.DEFENDER_WINS

    @classmethod
    def breach_by(cls, role: Role) -> Outcome:
        return cls.ATTACKER_BREACH if role is Role.ATTACKER else cls.DEFENDER_BREACH


class EndReason(StrEnum):
    """Why a game of Adversarial Taboo ended, as a value to count and to compare; a referee's reason in words is for
    people. Other games have texts of their own. Its values are metric labels and are stored in episode logs: renaming
    one breaks dashboards and old logs."""

    EMPTY_REPLY = "empty reply"
    SPOKE_FOR_OTHER = "spoke for the other"
    GUESSED = "guessed"  # by the attacker, who must not guess
    WRONG_GUESS = "wrong guess"
    RIGHT_GUESS = "right guess"
    SAID_WORD = "said the word"
    UNDECIDED = "undecided"
    CONTEXT_FULL = "context full"
    OTHER = "other"  # of games that were not judged here


MAX_END_REASON = 64  # characters
_END_REASONS = frozenset(map(str, EndReason))


def end_reason(text: str) -> EndReason | str:
    """The reason that is written as `text`: one of Taboo's, or that of another game."""
    return EndReason(text) if text in _END_REASONS else text


@dataclass(frozen=True)
class Verdict:
    """A referee's verdict on a game: how it ended and why, as a value (`end_reason`) and in words (`reason`).

    `end_reason` is an EndReason in Adversarial Taboo, and a text of the game's own in other games. `length` turns were
    read. `turn` is the index of the deciding turn and `span` the deciding characters [start, end) of its content; both
    are None when nothing decided. `payoffs` of attacker and defender: what the game itself pays; None in Adversarial
    Taboo, whose payoffs are a setting (game.payoffs).
    """

    outcome: Outcome
    end_reason: EndReason | str
    length: int
    reason: str
    turn: int | None = None
    span: tuple[int, int] | None = None
    payoffs: tuple[float | None, float | None] | None = None


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


def next_role(num_turns: int) -> Role:
    """Whose turn it is after `num_turns` turns; the attacker opens."""
    return Role.ATTACKER if num_turns % 2 == 0 else Role.DEFENDER


def check_history(history: object) -> None:
    """Raise InputError unless `history` is a list of turns that alternate, the attacker first."""
    if not isinstance(history, Sequence) or isinstance(history, str | bytes):
        raise InputError(f"a history must be a list of turns, not {type(history).__name__}")
    for index, turn in enumerate(history):
        if not isinstance(turn, Mapping):
            raise InputError(f'turn {index} must be an object with "role" and "content", not {type(turn).__name__}')
        for key in ("role", "content"):
            if not isinstance(turn.get(key), str):
                raise InputError(f"turn {index} needs a text under {key!r}, found {turn.get(key)!r}")
        if turn["role"] != next_role(index):
            raise InputError(
                f"turn {index} is by {turn['role']!r}, but turns alternate from the attacker on and it is "
                f"the {next_role(index)}'s; put the turns in order or leave this game out"
            )

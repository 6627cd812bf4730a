"""Stages, the parts of a run, and their names. Only this file builds and parses names.

>>> str(Stage.of_round(3)), str(Stage.of_round(3).of_policy("attacker")), str(Stage.evaluation("spag-3"))
('spag-3', 'spag-3-attacker', 'eval-spag-3')
>>> match = Stage.match("spag-2", "qwen2.5")
>>> str(match), match.title, Stage.parse(str(match)) == match
('match-spag-2@qwen2+5', 'spag-2 v qwen2.5', True)
>>> sorted(["match-spag-2@base", "eval-spag-10", "spag-10", "spag-9", "eval-base", "expert"], key=order_of)
['eval-base', 'expert', 'spag-9', 'spag-10', 'eval-spag-10', 'match-spag-2@base']
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache

from spag_ray.errors import InputError


class StageKind(StrEnum):
    """The values begin the names."""

    BASE = "base"  # the model that a run begins with; it is evaluated, and plays matches
    EXPERT = "expert"
    IMITATED = "imitated"
    ROUND = "spag"
    STREAM = "stream"
    EVALUATION = "eval"
    MATCH = "match"
    PLAY = "play"
    LEARN = "learn"
    OTHER = "other"


_PHASES = {
    **dict.fromkeys((StageKind.EXPERT, StageKind.IMITATED), "imitation"),
    **dict.fromkeys((StageKind.ROUND, StageKind.STREAM), "self_play"),
    **dict.fromkeys((StageKind.EVALUATION, StageKind.MATCH), "evaluation"),
    **{kind: str(kind) for kind in (StageKind.PLAY, StageKind.LEARN)},
}
_ORDER = (StageKind.BASE, StageKind.EXPERT, StageKind.IMITATED, StageKind.ROUND, StageKind.STREAM, StageKind.MATCH)
_ALONE = frozenset({"base", "expert", "stream", "play"})
_LEARNED = re.compile(r"(imitated|learn|spag-([1-9]\d{0,8}))(?:-(attacker|defender))?", re.ASCII)
_OWN = r"(?:base|imitated|spag-[1-9]\d{0,8})"
PLAYER_NAME = re.compile(r"[A-Za-z0-9][\w.-]{0,63}", re.ASCII)


@dataclass(frozen=True)
class Stage:
    """`round` is from 1 on in a ROUND, 0 elsewhere. `players`:

    of a MATCH       (attacker, defender)
    of an EVALUATION (the stage whose weights play both seats,)
    of a training stage (the policy,) if each seat has its own policy; else ()
    of OTHER         (its name,)

    The log of a stage is a file of its name. So a match's name separates its players by @, which is not allowed in
    player names, and writes their dots as +; otherwise "a.1" would be a segment of the log of "a". Of a text after
    `match-` that is not so, `players` is the text alone.

    Raises InputError when its name would be read as another stage.
    """

    kind: StageKind
    round: int = 0
    players: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if _read(str(self)) != (self.kind, self.round, self.players):
            raise InputError(
                f"{str(self)[:200]!r} is not a name of a {self.kind} stage: a player's name begins with a letter or a "
                "digit and has at most 64 letters, digits, . _ -"
            )

    @classmethod
    def parse(cls, name: str) -> Stage:
        """The stage of this name. Every text is valid; unknown names give OTHER."""
        return _parsed(name)

    @classmethod
    def of_round(cls, number: int) -> Stage:
        return cls(StageKind.ROUND, number)

    @classmethod
    def evaluation(cls, name: str) -> Stage:
        """The evaluation on held-out words of the weights that the stage `name` trained."""
        return cls(StageKind.EVALUATION, players=(name,))

    @classmethod
    def match(cls, attacker: str, defender: str) -> Stage:
        """A match on held-out words."""
        return cls(StageKind.MATCH, players=(attacker, defender))

    def of_policy(self, policy: str) -> Stage:
        """The part of this stage that trains one of two separate policies."""
        return Stage.parse(f"{self}-{policy}")

    @property
    def of_all_policies(self) -> Stage:
        return replace(self, players=()) if _LEARNED.fullmatch(str(self)) else self

    def __str__(self) -> str:
        if self.kind is StageKind.OTHER:
            return "".join(self.players)
        if self.kind is StageKind.MATCH and len(self.players) > 1:
            return f"match-{'@'.join(player.replace('.', '+') for player in self.players)}"
        number = [str(self.round)] if self.round else []
        return "-".join([self.kind, *number, *self.players])

    @property
    def phase(self) -> str:
        """What it is part of: there are as many stages as rounds, but few phases."""
        return _PHASES.get(self.kind, "other")

    @property
    def order(self) -> tuple[int, int, bool, str]:
        """Sort key: the order of stages in a run. A stage's evaluation comes after it."""
        is_evaluation = self.kind is StageKind.EVALUATION
        played = Stage.parse(self.players[0]) if is_evaluation else self
        place = _ORDER.index(played.kind) if played.kind in _ORDER else len(_ORDER)
        return place, played.round, is_evaluation, str(played)

    @property
    def title(self) -> str:
        """The players of an evaluation or a match; of any other stage, its name."""
        if self.kind is StageKind.MATCH and len(self.players) > 1:
            return " v ".join(self.players)
        return self.players[0] if self.kind is StageKind.EVALUATION else str(self)

    @property
    def seats(self) -> tuple[str, str]:
        """(attacker, defender) of a match or an evaluation."""
        return self.players[0], self.players[-1]

    @property
    def is_player(self) -> bool:
        """Whether a player of this name is one of a run's own stages, and no guest in its matches."""
        return re.fullmatch(_OWN, str(self), re.ASCII) is not None


def order_of(name: str) -> tuple[int, int, bool, str]:
    """Sort key for names of stages and players: their order in a run."""
    return Stage.parse(name).order


@lru_cache(maxsize=1024)
def _parsed(name: str) -> Stage:
    return Stage(*_read(name))


def _read(name: str) -> tuple[StageKind, int, tuple[str, ...]]:
    if name in _ALONE:
        return StageKind(name), 0, ()
    if (found := _LEARNED.fullmatch(name)) is not None:
        kind, number, policy = found[1].partition("-")[0], int(found[2] or 0), found[3]
        return StageKind(kind), number, (policy,) if policy else ()
    kind, _, rest = name.partition("-")
    if rest and kind == StageKind.EVALUATION:
        return StageKind.EVALUATION, 0, (rest,)
    if rest and kind == StageKind.MATCH:
        return StageKind.MATCH, 0, _players(rest)
    return StageKind.OTHER, 0, (name,)


def _players(text: str) -> tuple[str, ...]:
    attacker, at, defender = text.partition("@")
    players = attacker.replace("+", "."), defender.replace("+", ".")
    if at and "." not in text and all(map(PLAYER_NAME.fullmatch, players)):
        return players
    return (text,)


EXPERT, IMITATED, STREAM, PLAY, LEARN = map(
    Stage, (StageKind.EXPERT, StageKind.IMITATED, StageKind.STREAM, StageKind.PLAY, StageKind.LEARN)
)
BASE = Stage(StageKind.BASE)

"""When a policy needs another engine, and when one is too many.

>>> scaling = Scaling(EngineRange(min=1, max=2, grow_after_s=20, shrink_after_s=120), max_num_seqs=64)
>>> busy, easy = Load(num_engines=1, num_turns=70), Load(num_engines=2, num_turns=30)
>>> [scaling.step(busy, at_s) for at_s in (0, 10, 20)]
[0, 0, 1]
>>> [scaling.step(easy, at_s) for at_s in (30, 140, 150)]
[0, 0, -1]

A need has to last (`grow_after_s`, `shrink_after_s`), and there is a gap between the loads at which engines are added
and let go. So one long game, or the last games of a round, change nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

from spag_ray.config.engine import EngineRange

WAITS = 0.2  # the learner waits for games: more of them are needed
WAITS_NOT = 0.05
ENOUGH = 0.25  # an engine with fewer turns, of max_num_seqs, would gain nothing from another beside it
EASY = 0.5  # the others can take an engine's turns if they then have fewer of their max_num_seqs


@dataclass(frozen=True)
class Load:
    """What the engines of a policy have to do. `num_turns`: requested and not answered; `learner_waits`: in a stream,
    the share of its time that the learner waited for the last version's games."""

    num_engines: int
    num_turns: int
    learner_waits: float | None = None


class Scaling:
    """The decisions for one policy. `max_num_seqs`: turns that an engine answers at once."""

    def __init__(self, limits: EngineRange, max_num_seqs: int) -> None:
        self._limits = limits
        self._max_num_seqs = max_num_seqs
        self._since: dict[int, float] = {}  # {1 or -1: since when it has been needed}

    def step(self, load: Load, now_s: float) -> int:
        """1: add an engine; -1: let one go; 0: neither."""
        needed = self._needed(load)
        self._since = {needed: self._since.get(needed, now_s)} if needed else {}
        limits = self._limits
        if not needed or now_s - self._since[needed] < (limits.grow_after_s if needed > 0 else limits.shrink_after_s):
            return 0
        self._since = {}
        return needed

    def _needed(self, load: Load) -> int:
        num_engines, num_turns, waits = load.num_engines, load.num_turns, load.learner_waits
        if num_engines < self._limits.min:
            return 0  # a lost one is being replaced
        if num_engines < self._limits.max:
            room = num_engines * self._max_num_seqs
            if num_turns >= room if waits is None else waits > WAITS and num_turns > ENOUGH * room:
                return 1
        if num_engines > self._limits.min:
            has_time = num_turns > 0 if waits is None else waits < WAITS_NOT  # in rounds, no turn means no play now
            if has_time and num_turns <= EASY * (num_engines - 1) * self._max_num_seqs:
                return -1
        return 0

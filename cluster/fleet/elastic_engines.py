"""Adds engines while games need them and the cluster has room, and lets them go again (engine.num_engines: {min, max}).

The first `min` engines are in the run's placement group and are replaced when they die. The others are requested from
Ray one at a time, as single actors, so that an autoscaler adds a node for each. They join as an engine does that a
session adds, leave between games, and are not replaced: if one is lost, the load decides again.

>>> scaling = Scaling(EngineRange(min=1, max=2, grow_after_s=20, shrink_after_s=120), max_num_seqs=64)
>>> [scaling.step(at_s, num_engines=1, num_turns=70) for at_s in (0, 10, 20)]
[0, 0, 1]
>>> [scaling.step(at_s, num_engines=2, num_turns=30) for at_s in (30, 140, 150)]
[0, 0, -1]

A need has to last (`grow_after_s`, `shrink_after_s`), and there is a gap between the loads at which engines are added
and let go. So one long game, or the last games of a round, change nothing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import ray

from cluster.fleet.fleet import Fleet
from cluster.fleet.roster import EngineRecord
from cluster.learning.learning_policy import LearningPolicy
from spag_ray.config.engine import EngineConfig, EngineRange
from spag_ray.errors import SpagError

AGAIN_AFTER_S = 60.0  # after an engine that found no room, or did not start
WAITS = 0.2  # the learner waits for games: more of them are needed
WAITS_NOT = 0.05
ENOUGH = 0.25  # an engine with fewer turns, of max_num_seqs, would gain nothing from another beside it
EASY = 0.5  # the others can take an engine's turns if they then have fewer of their max_num_seqs


class ElasticEngines:
    """Call `scale` again and again. One engine at a time joins or leaves, in a thread. `learner_waits`: in a stream,
    the share of its time that the learner waited for the last version's games."""

    def __init__(
        self, config: EngineConfig, fleet: Fleet, policies: Sequence[LearningPolicy], note: Callable[[str], None]
    ) -> None:
        limits = config.num_engines
        self._fleet = fleet
        self._scaling: dict[LearningPolicy, Scaling] = {}
        if isinstance(limits, EngineRange):
            self._scaling = {policy: Scaling(limits, config.max_num_seqs) for policy in policies}
        self._note = note
        self._changing: threading.Thread | None = None
        self._not_before_s = 0.0
        self.learner_waits: float | None = None

    def scale(self) -> None:
        if self._changing is not None and self._changing.is_alive():
            return
        num_pending, in_thread = self._fleet.heartbeats.num_pending, self._fleet.tasks.start
        for policy, scaling in self._scaling.items():
            records = [each for each in self._fleet.roster.records if each.learner is policy and each.is_up]
            num_turns = sum(num_pending.get(each.name, 0) for each in records)
            step = scaling.step(time.monotonic(), len(records), num_turns, self.learner_waits)
            extra = [each for each in records if each.is_extra]
            if step > 0 and time.monotonic() >= self._not_before_s:
                self._changing = in_thread(f"add-engine-{policy.name}", partial(self._add, policy))
            elif step < 0 and extra:
                self._changing = in_thread(f"retire-{extra[-1].name}", partial(self._retire, extra[-1]))
            if step:
                return

    def _add(self, policy: LearningPolicy) -> None:
        try:
            self._fleet.add(policy, is_extra=True)
        except (SpagError, ray.exceptions.RayError) as error:
            self._not_before_s = time.monotonic() + AGAIN_AFTER_S
            if not self._fleet.tasks.is_stopped:
                self._note(f"no engine was added, the run continues with the engines that it has: {error}")

    def _retire(self, record: EngineRecord) -> None:
        try:
            self._fleet.retire(record, "fewer are needed")
        except ray.exceptions.RayError as error:
            if not self._fleet.tasks.is_stopped:
                self._note(f"{record.name} could not be let go: {error}")


class Scaling:
    """The decisions for one policy. `max_num_seqs`: turns that an engine answers at once."""

    def __init__(self, limits: EngineRange, max_num_seqs: int) -> None:
        self._limits = limits
        self._max_num_seqs = max_num_seqs
        self._since: dict[int, float] = {}  # {1 or -1: since when it has been needed}

    def step(self, now_s: float, num_engines: int, num_turns: int, learner_waits: float | None = None) -> int:
        """1: add an engine; -1: let one go; 0: neither. `num_turns`: requested from all of them and not answered."""
        needed = self._needed(num_engines, num_turns, learner_waits)
        self._since = {needed: self._since.get(needed, now_s)} if needed else {}
        limits = self._limits
        if not needed or now_s - self._since[needed] < (limits.grow_after_s if needed > 0 else limits.shrink_after_s):
            return 0
        self._since = {}
        return needed

    def _needed(self, num_engines: int, num_turns: int, waits: float | None) -> int:
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

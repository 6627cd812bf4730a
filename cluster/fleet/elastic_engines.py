"""Adds engines while games need them and the cluster has room, and lets them go again (engine.num_engines: {min, max}).

The first `min` engines are in the run's placement group and are replaced when they die. The others are requested from
Ray one at a time, as single actors, so that an autoscaler adds a node for each. They join as an engine does that a
session adds, leave between games, and are not replaced: if one is lost, the load decides again.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial

import ray

from cluster.fleet.engine_record import EngineRecord
from cluster.fleet.fleet import Fleet
from cluster.fleet.scaling import Load, Scaling
from cluster.learning.learning_policy import LearningPolicy
from spag_ray.config.engine import EngineConfig, EngineRange
from spag_ray.errors import SpagError

AGAIN_AFTER_S = 60.0  # after an engine that found no room, or did not start


class ElasticEngines:
    """Call `scale` again and again. One engine at a time joins or leaves, in a thread. `learner_waits`: see Load."""

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
            step = scaling.step(Load(len(records), num_turns, self.learner_waits), time.monotonic())
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

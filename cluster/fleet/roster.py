"""The records of all engines of a run, and every change of their states: a line in the log of the Run, and one in
metrics.jsonl."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping

from cluster.fleet.engine_record import EngineRecord, State
from cluster.learning.learning_policy import LearningPolicy
from cluster.rollout.arenas import Members
from cluster.runtime.locks import RankedLock
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.results.lines import EngineStateLine

log = logging.getLogger("spag_ray.fleet")


class Roster:
    """Hold `lock` to decide on a state and change it. `awake`: not set while a learner uses the engines' devices;
    `num_sleeps`: how often it was cleared."""

    def __init__(self, recorder: Recorder) -> None:
        self.lock = RankedLock("records", rank=3, may_wait=False)
        self.awake = threading.Event()
        self.awake.set()
        self.num_sleeps = 0
        self._recorder = recorder
        self._records: dict[str, EngineRecord] = {}  # by slot, in the order in which the slots were made

    @property
    def records(self) -> list[EngineRecord]:
        with self.lock:
            return list(self._records.values())

    def add(self, record: EngineRecord) -> EngineRecord:
        with self.lock:
            assert record.slot not in self._records, f"there is an engine called {record.slot}"
            self._records[record.slot] = record
            self._tell(record, "", 0.0, f"it is to play {record.policy}")
        return record

    def remove(self, record: EngineRecord, reason: str) -> bool:
        """It is retired. Returns False if it was already."""
        with self.lock:
            if record.state is State.RETIRED:
                return False
            self.become(record, State.RETIRED, reason)
            del self._records[record.slot]
        return True

    def become(self, record: EngineRecord, state: State, reason: str) -> None:
        """The caller holds the lock."""
        before = record.state
        self._tell(record, before, record.become(state), reason)

    def next_life(self, record: EngineRecord) -> None:
        """The next engine starts in the slot of a lost one. The caller holds the lock."""
        before, lost = record.state, record.name
        self._tell(record, before, record.next_life(), f"it takes the place of {lost}")

    def plays(self, records: Iterable[EngineRecord], version: int) -> list[EngineRecord]:
        """These have the weights of `version`. Returns those that had none before, and play from now on."""
        joined = []
        with self.lock:
            for record in records:
                if not record.is_up:
                    continue  # lost since
                if record.version is None:
                    joined.append(record)
                record.version = version
                if record.state is State.BEHIND:
                    self.become(record, State.PLAYING, f"it has version {version}")
        return joined

    def of_learner(self, policy: LearningPolicy, *states: State) -> list[EngineRecord]:
        """The records of a policy that learns, in these states."""
        return [each for each in self.records if each.learner is policy and each.state in states]

    def of(self, pool: str) -> list[Engine]:
        """The engines of a pool that can be asked now."""
        with self.lock:
            return [each.process for each in self.records if each.pool == pool and each.may_play]

    def up(self) -> list[Engine]:
        """All that run."""
        with self.lock:
            return [each.process for each in self.records if each.is_up]

    def members(self) -> Mapping[str, Members]:
        """What arenas are told, by pool."""
        found: dict[str, Members] = {}
        with self.lock:
            for each in self.records:
                members = found.setdefault(each.pool, Members(each.policy))
                if each.may_play:
                    members.engines.append((each.process, each.state is not State.DRAINING))
        return found

    def _tell(self, record: EngineRecord, before: str, seconds: float, reason: str) -> None:
        log.info("%s: %s -> %s: %s", record.name, before or "new", record.state, reason)
        state, seconds = str(record.state), round(seconds, 3)
        self._recorder.record(EngineStateLine(record.name, record.policy, state, before, seconds, reason))

"""The records of all engines of a run, and every change of their states (drawn in docs/architecture.md): a line in the
log of the Run, and one in metrics.jsonl.

`lost` is an engine that died or was stopped: another one starts in its slot. `retired` is for good.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.learning.learning_policy import LearningPolicy
from cluster.rollout.arenas import Members
from cluster.runtime.locks import RankedLock
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.results.lines import EngineStateLine

log = logging.getLogger("spag_ray.fleet")


class State(StrEnum):
    STARTING = "starting"  # its process starts, or loads its model
    BEHIND = "behind"  # it is up, and waits for the weights that the others play
    PLAYING = "playing"
    DRAINING = "draining"  # its games go on, and it gets no new one
    ASLEEP = "asleep"  # a learner uses its devices
    LOST = "lost"
    RETIRED = "retired"


_ENDS = (State.LOST, State.RETIRED)
MAY_BECOME: dict[State, frozenset[State]] = {
    State.STARTING: frozenset((State.BEHIND, *_ENDS)),
    State.BEHIND: frozenset((State.PLAYING, State.ASLEEP, *_ENDS)),
    State.PLAYING: frozenset((State.DRAINING, State.ASLEEP, *_ENDS)),
    State.DRAINING: frozenset((State.PLAYING, State.ASLEEP, *_ENDS)),
    State.ASLEEP: frozenset((State.BEHIND, State.PLAYING, State.DRAINING, *_ENDS)),
    State.LOST: frozenset((State.STARTING, State.RETIRED)),
    State.RETIRED: frozenset(),
}
UP = frozenset((State.BEHIND, State.PLAYING, State.DRAINING, State.ASLEEP))
MAY_PLAY = UP - {State.BEHIND}


@dataclass(eq=False)
class EngineRecord:
    """One place for an engine. It is read and changed under the roster's lock.

    `slot` stays the same for all engines that follow each other there; `life` counts them. `policy` stamps its turns.
    `learner`: the policy whose newest weights it plays; without one it plays `model`, or the saved weights that its
    pool was given last. `num_adapters`: the saved adapters that it can hold. `is_extra`: it was added because games
    needed it, and is not replaced. `version`: of the weights that it plays, None before it has any. `since`: when it
    changed to its state, in seconds of time.monotonic. `leaving`: why it leaves when its games have ended.
    `waits_for_room`: whether its process waits for devices that others hold.
    """

    slot: str
    pool: str
    policy: str
    model: str
    learner: LearningPolicy | None = None
    num_adapters: int = 0
    is_extra: bool = False
    life: int = 1
    engine: Engine | None = None
    state: State = State.STARTING
    version: int | None = None
    leaving: str = ""
    waits_for_room: bool = False
    since: float = field(default_factory=time.monotonic)

    @property
    def name(self) -> str:
        """The name of the engine that is there now, or was last."""
        return self.slot if self.life == 1 else f"{self.slot}.{self.life}"

    @property
    def is_up(self) -> bool:
        return self.state in UP

    @property
    def may_play(self) -> bool:
        """Whether arenas know it. One that sleeps stays known: nothing is asked meanwhile."""
        return self.version is not None and self.state in MAY_PLAY

    @property
    def process(self) -> Engine:
        """Its actor, for those that call it. Raises AssertionError before it has one."""
        assert self.engine is not None, f"{self.name} has no process yet"
        return self.engine

    def awake(self) -> State:
        """The state that it wakes to."""
        if self.version is None:
            return State.BEHIND
        return State.DRAINING if self.leaving else State.PLAYING


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
        assert state in MAY_BECOME[record.state], f"{record.name} is {record.state} and cannot become {state}"
        before, since = record.state, record.since
        record.state, record.since = state, time.monotonic()
        self._tell(record, before, record.since - since, reason)

    def next_life(self, record: EngineRecord) -> None:
        """The next engine starts in the slot of a lost one. The caller holds the lock."""
        lost = record.name
        record.life += 1
        record.engine, record.version, record.leaving = None, None, ""
        self.become(record, State.STARTING, f"it takes the place of {lost}")

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
                members.wait_for_room |= each.waits_for_room
                if each.may_play and each.leaving:
                    members.leaving.append(each.process)
                elif each.may_play:
                    members.engines.append((each.process, each.state is not State.DRAINING))
        return found

    def _tell(self, record: EngineRecord, before: str, seconds: float, reason: str) -> None:
        log.info("%s: %s -> %s: %s", record.name, before or "new", record.state, reason)
        state, seconds = str(record.state), round(seconds, 3)
        self._recorder.record(
            EngineStateLine(record.name, record.policy, state, before=before, seconds=seconds, reason=reason)
        )

"""What a run knows of one engine, and the states that an engine goes through (drawn in docs/architecture.md).

`lost` is an engine that died or was stopped: another one starts in its slot. `retired` is for good.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum

from cluster.learning.learning_policy import LearningPolicy
from cluster.types import Engine


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

    def become(self, state: State) -> float:
        """Returns how long it was in the state before, in seconds."""
        assert state in MAY_BECOME[self.state], f"{self.name} is {self.state} and cannot become {state}"
        before, self.since = self.since, time.monotonic()
        self.state = state
        return self.since - before

    def next_life(self) -> float:
        """Its replacement starts."""
        seconds = self.become(State.STARTING)
        self.life += 1
        self.engine, self.version, self.leaving = None, None, ""
        return seconds

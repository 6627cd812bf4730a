"""The fleet: the only owner of a run's engines. Whoever else needs engines asks it, or is told by it.

    training, schedules ── start, remove_pool ───────────────┐
    sessions, elastic, drained nodes ── add, remove, retire ─┼──> Fleet ──> Roster: a record for each engine
    heartbeats, a sync that failed ── lost ──────────────────┘      └─────> Arenas.update: who plays

How a lost engine is replaced: `lost` tells the arenas, and a thread (`replace`) starts the next one in its slot, which
loads the weights that the others play (`_join`). Where a learner uses the devices of engines, it starts when they are
free.

Locks, in the order in which a thread may take them (runtime/locks.py checks it in every run):

    updating      of whoever gives engines weights, or lets them sleep and wake (publisher.py). Its holder may wait for
                  engines, learners and arenas, each with a bound, but never for an engine that is to join
    arenas        held while calls to arenas are made, not while they are answered
    records       the roster's; nothing is waited for under it
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import ray

from cluster.fleet.engine_start import EngineStarter
from cluster.fleet.heartbeats import Heartbeats
from cluster.fleet.roster import EngineRecord, Roster, State
from cluster.handles import SavedWeights
from cluster.learning.learning_policy import LearningPolicy
from cluster.planning.reservation import NoRoomError, Reservation
from cluster.rollout.arenas import Arenas
from cluster.runtime.locks import RankedLock
from cluster.runtime.ray_session import NoAnswerError, first_line, get
from cluster.supervision.actor_watch import BEAT_S
from cluster.supervision.restart_budget import Incident, RestartBudget
from cluster.supervision.tasks import Tasks
from cluster.tracking.recorder import Recorder
from cluster.types import Engine, Says, says_nothing
from spag_ray.config.run import RunConfig
from spag_ray.errors import EngineError, InputError, SpagError, StopRequestedError, meant
from spag_ray.results.lines import EngineJoinedLine, EngineLeftLine, EngineLostLine

CLOSE_WITHIN_S = 20.0
LOOK_EVERY_S = 0.5  # whether engines may start again


class _NotNowError(EngineError):
    """An engine that has started cannot join: the others went to sleep, or it is no longer needed."""


class Fleet:
    """See above. `tasks`: its threads, and those of others who change how many engines there are. `saved`: {pool: what
    it was given last}; hold `updating` for it."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        arenas: Arenas,
        recorder: Recorder,
        restarts: RestartBudget,
        reservation: Reservation,
        says: Says = says_nothing,
    ) -> None:
        self.updating = RankedLock("updating", rank=1)
        self.roster = Roster(recorder)
        self.tasks = Tasks()
        self.saved: dict[str, SavedWeights] = {}
        self._config = config
        self._arenas = arenas
        self._recorder = recorder
        self._restarts = restarts
        self._starter = EngineStarter(config, folder, reservation, tasks=self.tasks, says=says)
        self.heartbeats = Heartbeats(config.supervision, self.roster.up, self._lost_together)
        self._ended: set[str] = set()  # pools that are no longer used
        self._num_added = 0
        arenas.serve(self.roster.members)
        self.tasks.every(BEAT_S, self._poll, "heartbeats")

    @property
    def are_asleep(self) -> bool:
        return not self.roster.awake.is_set()

    def _poll(self) -> None:
        self._restarts.poll()  # before deaths are found, so that it has seen what the kernel killed
        self.heartbeats.poll()

    # Engines come and go.

    def start(
        self,
        model: str,
        pool: str,
        policy: str,
        count: int,
        learner: LearningPolicy | None = None,
        num_adapters: int = 0,
    ) -> None:
        """Start `count` engines that play `model` in `pool`, stamped as `policy`; all are up and known to every arena
        when this returns. For `learner` and `num_adapters` see EngineRecord."""
        records = [
            self.roster.add(
                EngineRecord(
                    f"engine-{pool}-{index}", pool, policy, model=model, learner=learner, num_adapters=num_adapters
                )
            )
            for index in range(count)
        ]
        try:
            self._starter.start(records)
        except BaseException:
            for record in records:
                self.roster.remove(record, "it did not start")
            raise
        with self.roster.lock:
            for record in records:
                self.roster.become(record, State.BEHIND, "it has loaded its model")
        self.roster.plays(records, 0)
        self._arenas.update(pool)

    def add(self, policy: LearningPolicy, is_extra: bool = False) -> str:
        """Add an engine to a learning policy during play; returns the engine's name. It plays once it has the newest
        published weights: at once, or after the next sync if learners send weights themselves."""
        with self.roster.lock:
            self._num_added += 1
            slot = f"engine-{policy.name}-added-{self._num_added}"
            since = None if self.are_asleep else self.roster.num_sleeps
        record = self.roster.add(EngineRecord(slot, policy.name, policy.name, policy.model, policy, is_extra=is_extra))
        told = "the others sleep"
        if since is not None:
            try:
                self._come_up(record, since)
                return record.name
            except BaseException as error:
                if self.roster.num_sleeps == since:
                    self.roster.remove(record, "it did not start")
                    raise
                told = first_line(error)
        if self._did_not_come_up(record, life=1, why=told):
            self.tasks.start(f"replace-{record.name}", partial(self.replace, record))
        return record.name

    def remove(self, name: str) -> None:
        """Remove an engine during play: its unanswered turns are requested from others. Raises InputError for an
        unknown one, and for the only one of its pool."""
        by_name = {record.name: record for record in self.roster.records}
        if name not in by_name:
            told = f"no engine is called {name!r}; there are {', '.join(by_name) or 'none'}"
            raise InputError(told + meant(name, by_name))
        pool = by_name[name].pool
        if not any(each.pool == pool and each.name != name and not each.leaving for each in by_name.values()):
            raise InputError(f"{name} is the only engine of {pool}, and its games would stop; add another one before")
        self._leave([by_name[name]], "on request")

    def remove_pool(self, pool: str) -> None:
        """Remove all engines of a pool that is no longer used; an engine that is being replaced does not come back."""
        with self.roster.lock:
            self._ended.add(pool)
        self._leave([each for each in self.roster.records if each.pool == pool], "its player plays no more")

    def retire(self, record: EngineRecord, reason: str) -> bool:
        """Remove an engine between games: it gets no new one, and leaves when its games have ended. Returns False if it
        does not play, or leaves already."""
        with self.roster.lock:
            if record.leaving or not record.may_play:
                return False
            record.leaving = reason
            if record.state is State.PLAYING:
                self.roster.become(record, State.DRAINING, reason)
            engine = record.process
        self._arenas.update(record.pool)
        with contextlib.suppress(NoAnswerError):  # its games then move to others at their next turn
            self._arenas.wait_until_empty(engine)
        return self._leave([record], reason)

    def move_off(self, record: EngineRecord, engine: Engine, reason: str, timeout_s: float) -> bool:
        """Remove an engine between turns: its games move to others at their next turn, and it leaves when it has
        answered those that it has, or after `timeout_s`. `replace` then starts another one in its slot, but not in
        that of an extra engine. Returns False if it is gone already, and another one may be in its slot."""
        with self.roster.lock:
            if not record.is_up or record.engine is not engine:
                return False
            self.roster.become(record, State.LOST, reason)
        self._arenas.update(record.pool)
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(ray.exceptions.RayError, NoAnswerError):  # its turns are then requested from others
            while time.monotonic() < deadline and get(engine.handle.heartbeat.remote(), timeout_s)[0]:
                time.sleep(0.2)
        self._starter.end([engine], CLOSE_WITHIN_S)
        if record.is_extra:
            self.roster.remove(record, reason)
        self._recorder.record(EngineLeftLine(engine.name, record.policy, reason))
        return True

    def close(self) -> None:
        """Engines first close their child processes."""
        self.tasks.stop()
        records = self.roster.records
        try:
            for record in records:
                self.roster.remove(record, "the run ends")
        finally:  # a full disk, or a lost lease, may be why the run ends
            self._end(records)

    def _leave(self, records: Sequence[EngineRecord], reason: str) -> bool:
        """They are retired now, whatever they do. Returns False if all were gone already."""
        leaving = [record for record in records if self.roster.remove(record, reason)]
        self._arenas.update(*{record.pool for record in leaving})
        self._end(leaving)
        for record in leaving:
            self._recorder.record(EngineLeftLine(record.name, record.policy, reason))
        return bool(leaving)

    def _end(self, records: Sequence[EngineRecord]) -> None:
        self._starter.end([record.engine for record in records if record.engine is not None], CLOSE_WITHIN_S)

    # One is lost, and the next one takes its slot.

    def lost(
        self, name: str, fault: BaseException | str, has_failed: bool = True, incident: Incident | None = None
    ) -> None:
        """An engine is dead, hangs, or was stopped. It gets no more requests, and is replaced unless it was extra.
        `has_failed`: whether that counts as a restart; not if it was stopped for another's fault. `incident`: what has
        ended others with it."""
        with self.roster.lock:
            record = next((each for each in self.roster.records if each.name == name and each.is_up), None)
            if record is None:
                return  # another thread has seen it first, or it has left
            self.roster.become(record, State.LOST, first_line(fault))
            engine = record.process
        ray.kill(engine.handle)
        self._recorder.record(EngineLostLine(name, record.policy, first_line(fault)))
        # In a thread, because arenas may take long to answer, and an engine longer to start.
        failed = partial(self._restarts.count, name, fault, incident) if has_failed else None
        self.tasks.start(f"replace-{name}", partial(self._take_over, record, engine, failed))

    def lose(self, engines: Mapping[Engine, str]) -> None:
        """`engines`: {engine: why} of those that were stopped because they could not do what all were asked for."""
        self._lost_together({engine.name: EngineError(reason) for engine, reason in engines.items()})

    def _lost_together(self, faults: Mapping[str, BaseException | str]) -> None:
        """A node that is lost takes all its engines: they count as one restart, not as most of what is allowed."""
        incident = Incident()
        for name, fault in faults.items():
            self.lost(name, fault, incident=incident)

    def _take_over(self, record: EngineRecord, lost: Engine, failed: Callable[[], None] | None) -> None:
        """`failed` counts the restart."""
        self._starter.end([lost])
        self._arenas.update(record.pool)
        if record.is_extra:
            self.roster.remove(record, "the load decides whether another one comes")
            return
        if failed is not None:
            failed()
        self.replace(record)

    def replace(self, record: EngineRecord) -> None:
        """Start engines in the slot of a lost one until one plays, as long as the budget of restarts allows. One that
        finds no room waits for it again."""
        while (since := self._next_life(record)) is not None:
            life = record.life  # nobody else changes it before the engine is up
            fault: BaseException | None = None
            try:
                self._come_up(record, since)
                return
            except (_NotNowError, NoRoomError) as why:
                told = first_line(why)
            except StopRequestedError:
                raise
            except (ray.exceptions.RayError, SpagError) as error:
                # What sleep stopped, or what found no room on devices that a learner used, has not failed.
                fault, told = error if self.roster.num_sleeps == since else None, first_line(error)
            if not self._did_not_come_up(record, life, told) or self.tasks.is_stopped:
                return
            if fault is not None:
                self._restarts.count(record.name, fault)

    def _next_life(self, record: EngineRecord) -> int | None:
        """Wait until the devices are free; from then on the slot's next engine starts. Returns how often the engines
        have slept, None if no other engine is to come."""
        while True:
            with self.roster.lock:
                if record.state is not State.LOST or record.pool in self._ended or self.tasks.is_stopped:
                    return None
                if not self.are_asleep:
                    self.roster.next_life(record)
                    return self.roster.num_sleeps
            self.roster.awake.wait(LOOK_EVERY_S)

    def _come_up(self, record: EngineRecord, since: int) -> None:
        """Start an engine and let it play. `since`: how often the engines had slept when it was decided on; sleep stops
        what starts. Raises _NotNowError, and what starting and loading raise; it ends then."""
        self._starter.start([record], lambda: self.roster.num_sleeps != since, partial(self._wait_for_room, record))
        engine, saved = record.process, None
        try:
            while not self._join(record, engine, saved, since):
                saved = self._load_saved(engine)
        except BaseException:
            self._starter.end([engine])
            raise

    def _wait_for_room(self, record: EngineRecord, waits: bool) -> None:
        """Games have a limit for the wait for an engine, not for room, for which a replacement asks again and again."""
        with self.roster.lock:
            record.waits_for_room = waits
        self._arenas.update(record.pool)

    def _join(self, record: EngineRecord, engine: Engine, saved: SavedWeights | None, since: int) -> bool:
        """Let it play from now on. Returns False if its pool plays other saved weights than it has loaded."""
        learner = record.learner
        with self.updating:
            with self.roster.lock:
                if record.state is not State.STARTING or record.pool in self._ended:
                    raise _NotNowError("it is no longer needed")
                if self.roster.num_sleeps != since:
                    raise _NotNowError("the others went to sleep")
                if self.saved.get(record.pool) != saved:
                    return False
                self.roster.become(record, State.BEHIND, "it has loaded its model")
            if learner is None:
                self.joined([record], max((version for _, version in saved.values()), default=0) if saved else 0)
            elif saved and None in saved and saved[None][1] == learner.version:  # it takes several players' in turn
                self.joined([record], learner.version)
            else:
                others_play = bool(self.roster.of_learner(learner, State.PLAYING, State.DRAINING))
                if (lost := learner.catch_up(engine, others_play)) is not None:
                    self.lose(lost)
                    self.joined([record], learner.version)
        return True

    def joined(self, records: Sequence[EngineRecord], version: int) -> None:
        """These have the weights of `version`; those that waited for weights play from now on."""
        joined = self.roster.plays(records, version)
        self._arenas.update(*{record.pool for record in joined})
        for record in joined:
            self._recorder.record(EngineJoinedLine(record.name, record.policy, version))

    def _did_not_come_up(self, record: EngineRecord, life: int, why: str) -> bool:
        """False if it has left, or another thread replaces it: heartbeats may have seen first that it is dead."""
        with self.roster.lock:
            if record.life != life or record.state not in (State.STARTING, State.BEHIND):
                return False
            self.roster.become(record, State.LOST, why)
        return True

    def _load_saved(self, engine: Engine) -> SavedWeights | None:
        """Load what the pool was given last, even if that changes during the load; returns it, None if nothing is."""
        while (saved := self.saved.get(engine.pool)) is not None:
            try:
                get(engine.handle.load_saved.remote(saved), self._config.sync.timeout_s)
            except (ray.exceptions.RayTaskError, SpagError):
                if self.saved.get(engine.pool) == saved:
                    raise
                continue  # its folder may have been removed: load what is newer
            return saved
        return None

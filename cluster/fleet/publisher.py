"""Sends weights to the engines. When learners and engines use the same devices, one sleeps while the other works."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import ray

from actors.policy import WakePart
from cluster.fleet.fleet import LOOK_EVERY_S, Fleet
from cluster.fleet.roster import UP, EngineRecord, State
from cluster.handles import Ref, SavedWeights
from cluster.learning.direct_channel import gather
from cluster.learning.learning_policy import LearningPolicy
from cluster.rollout.arenas import Arenas
from cluster.runtime.ray_session import first_line
from cluster.types import Engine
from spag_ray.config.run import RunConfig
from spag_ray.errors import EngineError, LearnersLostError
from spag_ray.host.folder_lease import FolderLease
from spag_ray.host.whole_files import write_atomically

PUBLISHED = "published.json"


class Publisher:
    """The publisher of one run. If `placement` is not `colocated`, nothing sleeps."""

    def __init__(
        self, config: RunConfig, lease: FolderLease, policies: Sequence[LearningPolicy], fleet: Fleet, arenas: Arenas
    ) -> None:
        self._takes_turns = config.placement == "colocated"
        self._config = config
        self._is_direct = config.channel != "object_store"
        self._timeout_s = config.sync.timeout_s
        self._lease = lease
        self._policies = policies
        self.fleet = fleet
        self._roster = fleet.roster
        self._arenas = arenas

    @contextmanager
    def learners_beside(self) -> Iterator[None]:
        """In this block, which starts the engines, threads start the learners; on GPUs that both may use only as far as
        that needs none, because an engine measures the free memory. An error of the block is raised at once: the end of
        the run ends the learners, and with them what the threads wait for. An error of a thread is raised at the end of
        the block."""
        # The sum of the bounds of their waits: for room, then for four calls of the ranks, the loading being the last.
        within_s = self._config.cluster.placement_timeout_s + 4 * self._config.learner.timeout_s
        for policy in self._policies:
            policy.place_learners()
        threads = ThreadPoolExecutor(len(self._policies), "start-learners")
        try:
            begun = [
                threads.submit(policy.prepare_learners if self._config.may_share_gpus else policy.start_learners)
                for policy in self._policies
            ]
            yield
            for each in begun:
                each.result(within_s)
        finally:
            threads.shutdown(wait=False)

    def start_learners(self) -> None:
        """What is left of their start. If colocated, learners sleep and engines are awake when this returns."""
        if self._takes_turns and not all(policy.has_learners for policy in self._policies):
            self.sleep_engines()
        for policy in self._policies:
            policy.start_learners()
            if self._takes_turns:
                policy.sleep_learners()  # to free the memory for the next policy's learners
        self.wake_engines()

    def wake_engines(self) -> None:
        """If colocated, put the learners to sleep and wake the engines."""
        if self._takes_turns:
            for policy in self._policies:
                policy.sleep_learners()
            self._wake()
            self._wait_for_players()

    def wake_learners(self) -> None:
        """If colocated, put the engines to sleep, until `publish` or `wake_engines`, and wake the learners."""
        if self._takes_turns:
            self.sleep_engines()
            for policy in self._policies:
                policy.wake_learners()

    def publish(self) -> None:
        """Send the learners' weights to the engines. If colocated, learners export before they sleep, and engines wake
        before they load; if learners send weights themselves, both hold weights during the transfer."""
        self._note({policy.name: policy.next_version for policy in self._policies})
        with self.fleet.updating, self._counting_no_restarts():
            for policy in self._policies:
                policy.export()
            if self._takes_turns:
                for policy in self._policies:
                    policy.sleep_learners(keep_weights=self._is_direct)
                self._wake("weights" if self._is_direct else "all")
            given = [(policy, self._give_version(policy)) for policy in self._policies]
            if self._takes_turns and self._is_direct:
                for policy in self._policies:
                    policy.sleep_learners()
                self._wake("kv_cache")
            for policy, records in given:
                with self._roster.lock:
                    engines = [record.process for record in records if record.may_play]
                self.fleet.lose(policy.verify_weights(engines))
        self._wait_for_players()

    @contextmanager
    def _counting_no_restarts(self) -> Iterator[None]:
        """Engines that were stopped because learners were lost are replaced, and count as no restart."""
        try:
            yield
        except LearnersLostError as error:
            for name in error.stopped:
                self.fleet.lost(name, first_line(error), has_failed=False)
            raise

    def _wait_for_players(self) -> None:
        """Colocated, engines that died asleep start when the others wake: wait for one in each pool, because games wait
        no longer for an engine than one start may take. Without the fleet's locks, which those that join need."""
        deadline = time.monotonic() + self._config.engine.start_timeout_s
        while self._takes_turns and time.monotonic() < deadline and not self.fleet.tasks.is_stopped:
            records = self._roster.records
            comes = {each.pool for each in records if each.state in (State.STARTING, State.LOST)}
            if comes <= {each.pool for each in records if each.is_up}:
                return
            self.fleet.tasks.check()
            time.sleep(LOOK_EVERY_S)

    def _give_version(self, policy: LearningPolicy) -> list[EngineRecord]:
        """Give the exported version to every engine of a policy that does not leave; returns those that have it."""
        with self._roster.lock:
            # Draining are those whose channel broke when learners were lost, too: they have a part of a version, and
            # this one opens them again.
            records = self._roster.of_learner(policy, *UP)
            engines = {record.process: record for record in records if not record.leaving}
        lost = policy.publish(list(engines), self)
        self.fleet.lose(lost)
        taken = [record for engine, record in engines.items() if engine not in lost]
        self.fleet.joined(taken, policy.version)
        for record in taken:
            self.reopen(record.process)  # also where new weights do not come between games
        return taken

    def admit(self) -> None:
        """Send weights to engines that wait for them, if the learner can send now."""
        if not any(record.state is State.BEHIND for record in self._roster.records):
            return
        with self.fleet.updating, self._counting_no_restarts():
            for policy in self._policies:
                with self._roster.lock:
                    behind = {each.process: each for each in self._roster.of_learner(policy, State.BEHIND)}
                others = self._roster.of_learner(policy, State.PLAYING, State.DRAINING, State.ASLEEP)
                if behind and (lost := policy.admit(list(behind), bool(others))) is not None:
                    self.fleet.lose(lost)
                    taken = [record for engine, record in behind.items() if engine not in lost]
                    self.fleet.joined(taken, policy.version)

    def give(self, pool: str, saved: SavedWeights) -> None:
        """Every engine of a pool plays saved weights or adapters once its games have ended, or several players' weights
        in turn; so do replacements. Nothing is done if they have these already: a pool that learners publish to forgets
        what it was given before the next version.

        Raises WeightSyncError when none can load them.
        """
        with self.fleet.updating:
            if self.fleet.saved.get(pool) == saved:
                return
            with self._roster.lock:
                records = {each.process: each for each in self._roster.records if each.pool == pool and each.may_play}
            for engine in records:
                self.drain(engine)
            self.fleet.saved[pool] = saved  # only now: those that could not be drained have not got them
            loads = [engine.handle.load_saved.remote(saved) for engine in records]
            # Turns may be in progress all the same: `drain` does not wait for games that cannot end now.
            answers = gather(list(records), loads, self._config.load_within_s(in_flight=False))
            answers.check(f"{', '.join(sorted({folder for folder, _ in saved.values()}))}: not loaded by ")
            self.fleet.lose(answers.lost)
            newest = max((version for _, version in saved.values()), default=0)
            self.fleet.joined([records[engine] for engine in answers.found], newest)
            for engine in answers.found:
                self.reopen(engine)

    def forget(self, pool: str) -> None:
        """Replacements do not load what the pool was given last."""
        with self.fleet.updating:
            self.fleet.saved.pop(pool, None)

    # A Gate (learning/weight_sync.py): new weights come between games.

    def drain(self, engine: Engine) -> None:
        """Give an engine no new game; returns when it has none, or when games cannot end now."""
        with self._roster.lock:
            record = self._of(engine)
            if record is None or record.state not in (State.PLAYING, State.DRAINING):
                return
            if record.state is State.PLAYING:
                self._roster.become(record, State.DRAINING, "new weights come between games")
        self._arenas.update(engine.pool)
        self._arenas.wait_until_empty(engine, gives_up=self._games_may_wait)

    def _games_may_wait(self) -> bool:
        """Whether a pool has no engine that plays: its next one joins when new weights have been given, so games that
        wait for it are not waited for."""
        records = self._roster.records
        playing = {each.pool for each in records if each.may_play}
        return any(each.pool not in playing for each in records)

    def reopen(self, engine: Engine) -> None:
        """It gets games again, unless it is to leave."""
        with self._roster.lock:
            record = self._of(engine)
            if record is None or record.state is not State.DRAINING or record.leaving:
                return
            self._roster.become(record, State.PLAYING, "it has the new weights")
        self._arenas.update(engine.pool)

    def _of(self, engine: Engine) -> EngineRecord | None:
        return next((each for each in self._roster.records if each.engine is engine), None)

    # Engines and learners on the same devices.

    def sleep_engines(self) -> None:
        """Put every engine to sleep; one that starts is stopped, and starts again when the others wake. One that takes
        longer than `sync.timeout_s` is lost."""
        with self.fleet.updating:
            with self._roster.lock:
                self._roster.awake.clear()
                self._roster.num_sleeps += 1
                starting = [each.engine for each in self._roster.records if each.state is State.STARTING]
                records = [each for each in self._roster.records if each.is_up]
                for record in records:  # also those that sleep: a publish that failed may have woken a part of them
                    if record.state is not State.ASLEEP:
                        self._roster.become(record, State.ASLEEP, "learners use the devices")
                engines = [record.process for record in records]
            for engine in starting:
                if engine is not None:
                    ray.kill(engine.handle)
            self._wait_for("sleep", engines, [engine.handle.sleep.remote() for engine in engines])

    def _wake(self, part: WakePart = "all") -> None:
        """Wake every engine, with the same time limit. Does nothing if the engines are awake."""
        with self.fleet.updating:
            if self._roster.awake.is_set():
                return
            with self._roster.lock:
                records = [each for each in self._roster.records if each.state is State.ASLEEP]
                engines = [record.process for record in records]
            self._wait_for("wake", engines, [engine.handle.wake.remote(part) for engine in engines])
            if part == "weights":
                return
            with self._roster.lock:
                for record in records:
                    if record.state is State.ASLEEP:
                        self._roster.become(record, record.awake(), "the devices are free")
                self._roster.awake.set()
            self._arenas.update(*{record.pool for record in records})

    def _wait_for(self, what: str, engines: Sequence[Engine], calls: Sequence[Ref[None]]) -> None:
        answers = gather(engines, calls, self._timeout_s)
        if answers.refused and not answers.found:
            raise EngineError(f"no engine could {what}: {'; '.join(answers.lost.values())}")
        self.fleet.lose(answers.lost)

    # What was published.

    def _note(self, versions: Mapping[str, int]) -> None:
        """Record versions before engines get them, so that no version number is used twice."""
        self._lease.check(now=True)
        write_atomically(self._lease.folder / PUBLISHED, json.dumps(dict(versions)))


def published_in(folder: Path) -> dict[str, int]:
    """{policy: the newest version that a run folder's engines were given, or were about to be}, in any attempt."""
    path = folder / PUBLISHED
    found: dict[str, int] = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return found

"""The engines of a run: started, slept and woken together, added, removed, and replaced when they die or hang."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

import ray

from actors.policy import WakePart
from cluster.handles import EngineHandle, Ref, SavedWeights
from cluster.learning.direct_channel import gather
from cluster.learning.learning_policy import LearningPolicy
from cluster.planning.reservation import Reservation
from cluster.rollout.arenas import Arenas
from cluster.rollout.engine_actor import EngineActor, Pulse
from cluster.runtime.ray_session import get
from cluster.supervision.engine_watch import EngineWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.config.engine import EngineConfig
from spag_ray.config.run import RunConfig
from spag_ray.errors import EngineError, EngineGoneError, InputError, SpagError
from spag_ray.results.lines import EngineJoinedLine, EngineLeftLine, EngineLostLine


@dataclass(eq=False)
class Placed:
    """An engine, and what its replacement needs. `learner` is the policy whose newest weights it plays; without one it
    plays `model`, or the saved versions that its pool was given last. `num_adapters`: the saved adapters that it can
    hold. `is_extra`: it was added because games needed it (../elastic/), and is not replaced."""

    engine: Engine
    model: str
    policy: str
    learner: LearningPolicy | None = None
    num_adapters: int = 0
    lives: int = 1
    is_extra: bool = False


class Engines:
    """Hold `lock` to add or remove engines, or to give them new weights."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        arenas: Arenas,
        recorder: Recorder,
        restarts: RestartBudget,
        reservation: Reservation,
    ) -> None:
        self.lock = threading.RLock()
        self.watch = EngineWatch(config.supervision, self._replace)
        self._config = config
        self._folder = folder
        self._arenas = arenas
        self._recorder = recorder
        self._restarts = restarts
        self._reservation = reservation
        self._placed: list[Placed] = []
        self._missing: list[Placed] = []
        self._saved: dict[str, SavedWeights] = {}  # by pool: what it was given last
        self._ended: set[str] = set()  # pools that are no longer used
        self.are_asleep = False
        self._num_added = 0
        self.watch.start()

    def start(
        self,
        model: str,
        pool: str,
        policy: str,
        count: int,
        learner: LearningPolicy | None = None,
        num_adapters: int = 0,
    ) -> list[Engine]:
        """Start `count` engines that play `model` in `pool`, stamped as `policy`; all are up and known to every arena
        when this returns. `learner`: the policy whose newest weights they will play. `num_adapters`: the saved adapters
        that they will hold."""
        config = self._engine_config(learner, num_adapters)
        engines = self._start(model, pool, [f"engine-{pool}-{index}" for index in range(count)], config)
        self._arenas.join(engines, policy)
        for engine in engines:
            self._place(Placed(engine, model, policy, learner, num_adapters))
        return engines

    def add(self, policy: LearningPolicy, is_extra: bool = False) -> str:
        """Add an engine to a learning policy during play; returns the engine's name. It plays once it has the newest
        published weights: at once, or after the next sync if learners send weights themselves."""
        self._num_added += 1
        name = f"engine-{policy.name}-added-{self._num_added}"
        (engine,) = self._start(policy.model, policy.name, [name], self._engine_config(policy))
        self._comes_in(Placed(engine, policy.model, policy.name, policy, is_extra=is_extra))
        return engine.name

    def remove(self, name: str) -> None:
        """Remove an engine during play: its unanswered turns are requested from others. Raises InputError for an
        unknown one."""
        with self.lock:
            by_name = {placed.engine.name: placed for placed in self._placed}
            if name not in by_name:
                raise InputError(f"no engine is called {name!r}; there are {', '.join(by_name) or 'none'}")
            placed = by_name[name]
            self._takes_leave(placed)
        self._end([placed])
        self._recorder.record(EngineLeftLine(name, placed.policy))

    def retire(self, placed: Placed, reason: str) -> bool:
        """Remove an engine between games: it gets no new one, and leaves when its games have ended. Returns False if it
        is gone already."""
        self._arenas.drain(placed.engine)
        with self.lock:
            if placed not in self._placed:
                return False
            self._takes_leave(placed)
        self._end([placed])
        self._recorder.record(EngineLeftLine(placed.engine.name, placed.policy, reason))
        return True

    def move_off(self, placed: Placed, reason: str, timeout_s: float) -> bool:
        """Remove an engine between turns: its games move to others at their next turn, and it leaves when it has
        answered those that it has, or after `timeout_s`. Returns False if it is gone already."""
        with self.lock:
            if placed not in self._placed:
                return False
            self._takes_leave(placed)
        deadline = time.monotonic() + timeout_s
        with contextlib.suppress(ray.exceptions.RayError):  # it dies first: its turns are requested from others
            while time.monotonic() < deadline and get(placed.engine.handle.heartbeat.remote(), timeout_s)[0]:
                time.sleep(0.2)
        self._end([placed])
        self._recorder.record(EngineLeftLine(placed.engine.name, placed.policy, reason))
        return True

    def bring_back(self, placed: Placed) -> None:
        """Start a replacement of an engine that has moved off."""
        self._bring_back(placed)

    def remove_pool(self, pool: str) -> None:
        """Remove all engines of a pool that is no longer used; an engine that is being replaced does not come back."""
        with self.lock:
            self._ended.add(pool)
            placed = [each for each in self._placed if each.engine.pool == pool]
            for each in placed:
                self._takes_leave(each)
        self._end(placed)
        for each in placed:
            self._recorder.record(EngineLeftLine(each.engine.name, each.policy, "its player plays no more"))

    @property
    def placed(self) -> list[Placed]:
        """All current engines."""
        return list(self._placed)

    def of(self, pool: str) -> list[Engine]:
        """The current engines of a pool."""
        return [placed.engine for placed in list(self._placed) if placed.engine.pool == pool]

    def give(self, pool: str, saved: SavedWeights) -> None:
        """Every engine of a pool plays saved weights or adapters once its games have ended; so do replacements.

        Raises WeightSyncError when none can load them.
        """
        with self.lock:
            self._saved[pool] = saved
            placed = [each for each in self._placed if each.engine.pool == pool]
        for each in placed:
            self._arenas.drain(each.engine)
        engines = [each.engine for each in placed]
        loads = [engine.handle.load_saved.remote(saved) for engine in engines]
        answers = gather(engines, loads, self._config.sync.timeout_s)
        answers.check(f"{', '.join(sorted({folder for folder, _ in saved.values()}))}: not loaded by ")
        for engine in answers.found:
            self._arenas.reopen(engine)
        if placed:
            self.lost(placed[0].policy, answers.lost)

    def sleep(self) -> None:
        """Put every engine to sleep. One that takes longer than `sync.timeout_s` is stopped and replaced."""
        with self.lock:
            self.are_asleep = True
            placed = list(self._placed)
        self._wait_for("sleep", placed, [each.engine.handle.sleep.remote() for each in placed])

    def wake(self, part: WakePart = "all") -> None:
        """Wake every engine, with the same time limit as `sleep`. Does nothing if the engines are awake."""
        if not self.are_asleep:
            return
        with self.lock:
            placed = list(self._placed)
        self._wait_for("wake", placed, [each.engine.handle.wake.remote(part) for each in placed])
        if part == "weights":
            return
        with self.lock:
            self.are_asleep = False

    def replace_missing(self) -> None:
        """Start replacements of those that died while they were asleep. The caller must not hold `lock`: each
        replacement starts in a thread of its own, which takes it."""
        with self.lock:
            missing, self._missing = self._missing, []
        if missing:
            with ThreadPoolExecutor(len(missing)) as together:
                list(together.map(self._bring_back, missing))

    def _wait_for(self, what: str, placed: Sequence[Placed], calls: Sequence[Ref[None]]) -> None:
        answers = gather([each.engine for each in placed], calls, self._config.sync.timeout_s)
        if answers.refused and not answers.found:
            raise EngineError(f"no engine could {what}: {'; '.join(answers.lost.values())}")
        for each in placed:
            if each.engine in answers.lost:
                self.lost(each.policy, {each.engine: answers.lost[each.engine]})

    def lost(self, policy: str, engines: Mapping[Engine, str]) -> None:
        """`engines`: {engine: why} of those that were stopped. They get no more requests; the watch replaces them."""
        for engine, reason in engines.items():
            self._arenas.drop(engine)
            self._recorder.record(EngineLostLine(engine.name, policy, reason))

    def joined(self, policy: LearningPolicy, engine: Engine) -> None:
        """An engine has the newest weights of the policy that it plays, and may play."""
        self._joins(engine, policy.name, policy.version)

    def _joins(self, engine: Engine, policy: str, version: int) -> None:
        self._arenas.join([engine], policy)
        self._recorder.record(EngineJoinedLine(engine.name, policy, version))

    def close(self) -> None:
        """Engines first close their child processes."""
        self.watch.stop()
        self._end(self._placed)
        self._placed = []

    def _end(self, placed: Sequence[Placed]) -> None:
        closing = [each.engine.handle.close.remote() for each in placed]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=20)
        for each in placed:
            ray.kill(each.engine.handle)

    def _start(
        self, model: str, pool: str, names: Sequence[str], config: EngineConfig, waits_for: str | None = None
    ) -> list[Engine]:
        """`waits_for`: the policy whose games wait for these engines."""
        actor = ray.remote(concurrency_groups={Pulse.GROUP: 1})(EngineActor)
        engines = []
        for name in names:
            handle: EngineHandle = actor.options(
                name=f"{name}-{self._folder.name}",
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                max_concurrency=4096,
                **self._reservation.take(name, "engine", config.num_cpus, config.num_gpus),
            ).remote(str(self._folder / "logs" / f"{name}.log"))
            engines.append(Engine(handle, name, pool))
        try:
            with self._arenas.waiting_for_room(pool, waits_for, names) if waits_for else contextlib.nullcontext():
                handles = [engine.handle for engine in engines]
                self._reservation.wait_for(names, handles, config.num_cpus, config.num_gpus)
            starts = [
                engine.handle.start.remote(
                    model, config, engine.name, 0, self._config.seed + index, self._config.sync.channel
                )
                for index, engine in enumerate(engines)
            ]
            self._wait_until_up(engines, starts)
        except BaseException:
            for engine in engines:
                ray.kill(engine.handle)
                self._reservation.leave(engine.name)
            raise
        return engines

    def _wait_until_up(self, engines: Sequence[Engine], starts: Sequence[Ref[int]]) -> None:
        """Raises EngineError when it takes too long, an engine stops answering, or the run ends."""
        start_timeout_s = self._config.engine.start_timeout_s
        silent_s = self._config.supervision.heartbeat_timeout_s
        deadline = time.monotonic() + start_timeout_s
        pulses = [Pulse(engine.handle, silent_s) for engine in engines]
        pending = list(starts)
        while pending:
            done, pending = ray.wait(pending, num_returns=len(pending), timeout=0.5)
            try:
                get(done)
            except ray.exceptions.RayActorError as error:
                told = f"an engine's process ended while it started ({' '.join(str(error).split())[:300]})"
                raise EngineGoneError(f"{told}; see {self._folder}/logs") from error
            if self.watch.is_stopped:
                raise EngineError("the run ends while an engine starts")
            if pending and time.monotonic() > deadline:
                raise EngineError(
                    f"no engine after engine.start_timeout_s ({start_timeout_s:.0f} s); see {self._folder}/logs"
                )
            for engine, pulse in zip(engines, pulses, strict=True):
                if not pulse.is_felt():
                    raise EngineError(f"{engine.name} has not answered a heartbeat for {silent_s:g} s while it started")

    def _place(self, placed: Placed) -> None:
        self._placed.append(placed)
        self.watch.watch(placed)

    def _takes_leave(self, placed: Placed) -> None:
        self._placed.remove(placed)
        self.watch.forget(placed.engine)
        self._reservation.leave(placed.engine.name)
        self._arenas.drop(placed.engine)
        if placed.learner is not None:
            placed.learner.leave(placed.engine)

    def _replace(self, placed: Placed, fault: BaseException | str) -> None:
        """Called by the watch: this engine is dead or hangs."""
        ray.kill(placed.engine.handle)  # before taking the lock: its holder may wait for this engine
        with self.lock:
            if placed not in self._placed:
                return
            if placed.is_extra:
                self._takes_leave(placed)
                self._recorder.record(EngineLostLine(placed.engine.name, placed.policy, str(fault)))
                return
            self._restarts.count(placed.engine.name, fault)
            self._takes_leave(placed)
            if self.are_asleep:
                self._missing.append(placed)
                return
        self._bring_back(placed)

    def _bring_back(self, placed: Placed) -> None:
        """Start a replacement; if it fails before it plays, try again as long as the restart budget allows."""
        pool = placed.engine.pool
        while pool not in self._ended and not self.watch.is_stopped:
            lives = placed.lives + 1
            name = f"{placed.engine.name.split('.')[0]}.{lives}"
            placed = replace(placed, lives=lives)
            try:
                config = self._engine_config(placed.learner, placed.num_adapters)
                (engine,) = self._start(placed.model, pool, [name], config, placed.policy)
                placed = replace(placed, engine=engine)
                saved = None
                while not self._comes_in(placed, saved):
                    saved = self._load_saved(engine)
            except (ray.exceptions.RayActorError, ray.exceptions.GetTimeoutError, EngineError) as error:
                self._forsake(placed, name)
                if not self.watch.is_stopped:
                    self._restarts.count(name, error)
                continue
            return

    def _load_saved(self, engine: Engine) -> SavedWeights:
        """Load what the pool was given last, even if that changes during the load; returns it."""
        while True:
            saved = self._saved[engine.pool]
            try:
                get(engine.handle.load_saved.remote(saved), self._config.sync.timeout_s)
            except (ray.exceptions.RayTaskError, SpagError):
                if self._saved[engine.pool] == saved:
                    raise
                continue  # its folder may have been removed: load what is newer
            return saved

    def _comes_in(self, placed: Placed, saved: SavedWeights | None = None) -> bool:
        """Let the engine play from now on. Returns False if its pool plays other saved weights than it has loaded."""
        with self.lock:
            if self._saved.get(placed.engine.pool) != saved:
                return False
            if placed.engine.pool in self._ended or self.are_asleep:
                self._forsake(placed, placed.engine.name)
                if self.are_asleep:
                    self._missing.append(placed)  # it is replaced when the others wake
                return True
            self._place(placed)
            if placed.learner is None:
                newest = max((version for _, version in saved.values()), default=0) if saved else 0
                self._joins(placed.engine, placed.policy, newest)
            elif placed.learner.catch_up(placed.engine):
                self.joined(placed.learner, placed.engine)
            return True

    def _forsake(self, placed: Placed, name: str) -> None:
        """Remove an engine that never played."""
        if placed.engine.name == name:
            ray.kill(placed.engine.handle)
        self._reservation.leave(name)

    def _engine_config(self, learner: LearningPolicy | None, num_adapters: int = 0) -> EngineConfig:
        """With room for adapters: a learner's newest and the one before it, or `num_adapters` saved ones."""
        lora = self._config.learner.lora
        if learner is not None and self._config.sends_adapters:
            num_adapters = 2
        if lora is None or not num_adapters:
            return self._config.engine
        return self._config.engine.model_copy(update={"max_lora_rank": lora.rank, "max_adapters": num_adapters})

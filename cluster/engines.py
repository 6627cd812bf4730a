"""The engines of a run: started, slept and woken together, added, taken out, and replaced when they die or hang."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import ray

from cluster.arena_actor import Engine
from cluster.arenas import Arenas
from cluster.learning_policy import LearningPolicy
from cluster.metrics import Metrics
from cluster.places import Places
from cluster.remote_policy import EngineActor
from cluster.runtime import get, own_environment
from cluster.supervisor import EngineWatch, Placed, Restarts
from spag_ray.config import EngineConfig, RunConfig
from spag_ray.errors import EngineError


class Engines:
    """`lock` is held by whoever changes which engines there are, or gives them new weights."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        arenas: Arenas,
        metrics: Metrics,
        restarts: Restarts,
        places: Places,
    ) -> None:
        self.lock = threading.RLock()
        self.watch = EngineWatch(config.supervision, self._replace)
        self._config = config
        self._folder = folder
        self._arenas = arenas
        self._metrics = metrics
        self._restarts = restarts
        self._places = places
        self._placed: list[Placed] = []
        self._missing: list[Placed] = []
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
    ) -> list[Engine]:
        """`count` engines that play `model` in `pool`, stamped as `policy`; all up and known to every arena when this
        returns. `learner`: the policy whose newest weights they will play."""
        engines = self._start(model, pool, [f"engine-{pool}-{index}" for index in range(count)])
        for engine in engines:
            self._arenas.join(engine, policy)
            self._place(Placed(engine, model, policy, learner))
        return engines

    def add(self, policy: LearningPolicy) -> str:
        """One more engine for a policy that learns, while it plays; returns the engine's name. It plays once it has
        the newest published weights: at once, or after the next sync where learners send weights themselves."""
        self._num_added += 1
        (engine,) = self._start(policy.model, policy.name, [f"engine-{policy.name}-added-{self._num_added}"])
        self._comes_in(Placed(engine, policy.model, policy.name, policy))
        return engine.name

    def remove(self, name: str) -> None:
        """Take an engine out while it plays: what it was asked is asked of others."""
        with self.lock:
            placed = next(placed for placed in self._placed if placed.engine.name == name)
            self._takes_leave(placed)
        ray.wait([placed.engine.handle.close.remote()], timeout=20)
        ray.kill(placed.engine.handle)
        self._metrics.record("engine_left", engine=name, policy=placed.policy)

    def of(self, pool: str) -> list[Engine]:
        """Those that there are of a pool now."""
        return [placed.engine for placed in list(self._placed) if placed.engine.pool == pool]

    def gave(self, engine: Engine, folder: str, version: int) -> None:
        """The engine has been given a saved version: one in its place would be given it too."""
        for placed in self._placed:
            if placed.engine is engine:
                placed.saved = folder, version

    def all(self, call: str, *arguments: str) -> None:
        """`sleep` or `wake` every engine; those that died in their sleep are made again when the others are awake. Who
        is awake is not woken."""
        if call == "wake" and not self.are_asleep:
            return
        if call == "sleep":
            self.are_asleep = True
        for placed in list(self._placed):
            with contextlib.suppress(ray.exceptions.RayActorError):
                get(getattr(placed.engine.handle, call).remote(*arguments))
        if call == "wake" and arguments != ("weights",):
            self.are_asleep = False
            with self.lock:
                missing, self._missing = self._missing, []
            for placed in missing:
                self._bring_back(placed)

    def lost(self, policy: LearningPolicy, engines: Sequence[Engine]) -> None:
        """Engines that were found dead: nobody asks them any more. The watch replaces them."""
        for engine in engines:
            self._arenas.drop(engine)
            self._metrics.record("engine_lost", engine=engine.name, policy=policy.name)

    def joined(self, policy: LearningPolicy, engine: Engine) -> None:
        """An engine has the newest weights of the policy that it plays, and may play."""
        self._arenas.join(engine, policy.name)
        self._metrics.record("engine_joined", engine=engine.name, policy=policy.name, version=policy.version)

    def close(self) -> None:
        """Engines first close their child processes."""
        self.watch.stop()
        closing = [placed.engine.handle.close.remote() for placed in self._placed]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=20)
        for placed in self._placed:
            ray.kill(placed.engine.handle)
        self._placed = []

    def _start(self, model: str, pool: str, names: Sequence[str]) -> list[Engine]:
        config = self._engine_config()
        actor = ray.remote(EngineActor)
        engines = []
        for name in names:
            handle = actor.options(
                name=f"{name}-{self._folder.name}",
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                max_concurrency=4096,
                runtime_env=own_environment(config.env),
                **self._places.take(name, "engine", config.num_cpus, config.num_gpus),
            ).remote(str(self._folder / "logs" / f"{name}.log"))
            engines.append(Engine(handle, name, pool))
        try:
            handles = [engine.handle for engine in engines]
            self._places.wait_for(names, handles, config.num_cpus, config.num_gpus)
            starts = [
                engine.handle.start.remote(
                    model, config, engine.name, 0, self._config.seed + index, self._config.sync.channel
                )
                for index, engine in enumerate(engines)
            ]
            get(starts, config.start_timeout_s)
        except BaseException as error:
            for engine in engines:
                ray.kill(engine.handle)
                self._places.leave(engine.name)
            if isinstance(error, ray.exceptions.GetTimeoutError):
                raise EngineError(
                    f"no engine after engine.start_timeout_s ({config.start_timeout_s:.0f} s); see {self._folder}/logs"
                ) from error
            raise
        return engines

    def _place(self, placed: Placed) -> None:
        self._placed.append(placed)
        self.watch.watch(placed)

    def _takes_leave(self, placed: Placed) -> None:
        self._placed.remove(placed)
        self.watch.forget(placed.engine)
        self._places.leave(placed.engine.name)
        self._arenas.drop(placed.engine)
        if placed.learner is not None:
            placed.learner.leave(placed.engine)

    def _replace(self, placed: Placed, fault: BaseException | str) -> None:
        """Called by the watch: this engine is dead, or is to be."""
        ray.kill(placed.engine.handle)  # before the lock: whoever has it may wait for this very engine
        with self.lock:
            if placed not in self._placed:
                return
            self._restarts.count(placed.engine.name, fault)
            self._takes_leave(placed)
            if self.are_asleep:
                self._missing.append(placed)
                return
        self._bring_back(placed)

    def _bring_back(self, placed: Placed) -> None:
        """Another engine in its place; one that does not get as far as playing is tried again, as often as restarts
        may be."""
        while True:
            lives = placed.lives + 1
            name = f"{placed.engine.name.split('.')[0]}.{lives}"
            placed = replace(placed, lives=lives)
            try:
                (engine,) = self._start(placed.model, placed.engine.pool, [name])
                if placed.saved is not None:
                    get(engine.handle.load_saved.remote(*placed.saved))
            except (ray.exceptions.RayActorError, EngineError) as error:
                self._restarts.count(name, error)
                continue
            self._comes_in(replace(placed, engine=engine))
            return

    def _comes_in(self, placed: Placed) -> None:
        with self.lock:
            self._place(placed)
            if placed.learner is None:
                self._arenas.join(placed.engine, placed.policy)
            elif placed.learner.catch_up(placed.engine):
                self.joined(placed.learner, placed.engine)

    def _engine_config(self) -> EngineConfig:
        lora = self._config.learner.lora
        if lora is None or lora.export == "merged":
            return self._config.engine
        return self._config.engine.model_copy(update={"max_lora_rank": lora.rank})

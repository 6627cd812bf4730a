"""Starts engines: an actor each, in the places that the run has reserved, until they have loaded their model."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import ray

from cluster.fleet.roster import EngineRecord
from cluster.handles import EngineHandle, Ref
from cluster.planning.reservation import Reservation
from cluster.rollout.engine_actor import EngineActor, Pulse, slowest
from cluster.runtime.output_files import label_of
from cluster.runtime.ray_session import ACTOR_LOST, get
from cluster.supervision.tasks import Tasks
from cluster.types import Engine, Says, says_nothing
from spag_ray.config.engine import EngineConfig
from spag_ray.config.run import RunConfig
from spag_ray.errors import EngineError, EngineGoneError


@dataclass(eq=False)
class EngineStarter:
    """`tasks`: when they are stopped, so is a start. `says` is told what starts wait for."""

    config: RunConfig
    folder: Path
    reservation: Reservation
    tasks: Tasks
    says: Says = says_nothing
    _turn: threading.Lock = field(default_factory=threading.Lock)  # to start engines that may be on one GPU

    def start(
        self,
        records: Sequence[EngineRecord],
        gives_up: Callable[[], bool] = lambda: False,
        waits_for_room: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """Start an engine in the place of each record, all of the same kind, with their processes as
        `record.engine`. `gives_up`: whether they are not to start after all. `waits_for_room`: told when the wait for
        devices begins, and when it ends.

        Raises EngineError when it takes too long or fails, EngineGoneError when a process ends, NoRoomError when there
        is no room; then none is left running.
        """
        pool = records[0].pool
        config, names = self._config_of(records[0]), [record.name for record in records]
        shown = names[0] if len(names) == 1 else f"{len(names)} engines of {pool}"
        actor = ray.remote(concurrency_groups={Pulse.GROUP: 1})(EngineActor)
        engines: list[Engine] = []
        try:
            for record in records:
                handle: EngineHandle = actor.options(
                    name=f"{record.name}-{label_of(self.folder)}",
                    num_cpus=config.num_cpus,
                    num_gpus=config.num_gpus,
                    max_concurrency=4096,
                    **self.reservation.take(record.name, "engine", config.num_cpus, config.num_gpus),
                ).remote(str(self.folder / "logs" / f"{record.name}.log"))
                record.engine = Engine(handle, record.name, pool)
                engines.append(record.engine)
            handles = [engine.handle for engine in engines]
            try:
                waits_for_room(True)
                self.reservation.wait_for(names, handles, config.num_cpus, config.num_gpus, gives_up)
            finally:
                waits_for_room(False)
            try:
                with self._in_turn(config, gives_up):
                    for together in self._on_different_gpus(engines, config):
                        starts = [  # vLLM's workers give the seed to numpy, which takes 32 bits
                            engine.handle.start.remote(
                                records[0].model,
                                config,
                                engine.name,
                                version=0,
                                seed=(self.config.seed + engines.index(engine)) % 2**32,
                                channel=self.config.channel,
                            )
                            for engine in together
                        ]
                        self._wait_until_up(together, starts, shown, gives_up)
            except ACTOR_LOST as error:
                told = f"an engine's process ended while it started ({' '.join(str(error).split())[:300]})"
                raise EngineGoneError(f"{told}; see {self.folder}/logs") from error
        except BaseException:
            self.end(engines)
            raise
        finally:
            self.says(shown, None)

    def end(self, engines: Sequence[Engine], close_within_s: float = 0.0) -> None:
        """Kill them. With `close_within_s` they may first close their child processes."""
        if close_within_s and engines:
            ray.wait([each.handle.close.remote() for each in engines], num_returns=len(engines), timeout=close_within_s)
        for engine in engines:
            ray.kill(engine.handle)
            self.reservation.leave(engine.name)

    @contextlib.contextmanager
    def _in_turn(self, config: EngineConfig, gives_up: Callable[[], bool]) -> Iterator[None]:
        """Holds back engines that other threads start, such as replacements of those that were lost together. Each
        holder's starts have bounds."""
        if not may_share_a_gpu(config):
            yield
            return
        while not self._turn.acquire(timeout=0.5):
            if self.tasks.is_stopped or gives_up():
                raise EngineError("the run ends, or a learner takes the devices, while an engine waits to start")
        try:
            yield
        finally:
            self._turn.release()

    def _on_different_gpus(self, engines: Sequence[Engine], config: EngineConfig) -> list[list[Engine]]:
        """Those that may start together, one group after the other."""
        if len(engines) < 2 or not may_share_a_gpu(config):
            return [list(engines)]
        groups: list[list[Engine]] = []
        num_on: Counter[tuple[str, ...]] = Counter()
        gpus = get([engine.handle.gpus.remote() for engine in engines], self.config.engine.start_timeout_s)
        for engine, own in zip(engines, gpus, strict=True):
            if num_on[own] == len(groups):
                groups.append([])
            groups[num_on[own]].append(engine)
            num_on[own] += 1
        return groups

    def _wait_until_up(
        self, engines: Sequence[Engine], starts: Sequence[Ref[int]], shown: str, gives_up: Callable[[], bool]
    ) -> None:
        """Raises EngineError when it takes too long, an engine stops answering, or they are not to start after all.
        `shown`: what a display calls them."""
        start_timeout_s = self.config.engine.start_timeout_s
        silent_s = self.config.supervision.heartbeat_timeout_s
        deadline = time.monotonic() + start_timeout_s
        pulses = [Pulse(engine.handle, silent_s) for engine in engines]
        pending = list(starts)
        while pending:
            done, pending = ray.wait(pending, num_returns=len(pending), timeout=0.5)
            get(done)
            if self.tasks.is_stopped or gives_up():
                raise EngineError("the run ends, or a learner takes the devices, while an engine starts")
            if pending and time.monotonic() > deadline:
                raise EngineError(
                    f"no engine after engine.start_timeout_s ({start_timeout_s:.0f} s); see {self.folder}/logs"
                )
            for engine, pulse in zip(engines, pulses, strict=True):
                if not pulse.is_felt():
                    raise EngineError(f"{engine.name} has not answered a heartbeat for {silent_s:g} s while it started")
            self.says(shown, slowest(pulses))

    def _config_of(self, record: EngineRecord) -> EngineConfig:
        """With room for adapters: a learner's newest and the one before it, or the saved ones."""
        lora, num_adapters = self.config.learner.lora, record.num_adapters
        if record.learner is not None and self.config.sends_adapters:
            num_adapters = 2
        if lora is None or not num_adapters:
            return self.config.engine
        return self.config.engine.model_copy(update={"max_lora_rank": lora.rank, "max_adapters": num_adapters})


def may_share_a_gpu(config: EngineConfig) -> bool:
    """Whether two engines may be on one GPU. vLLM takes what the free memory of a GPU falls by during its start for its
    own use: there, one at a time may start."""
    return config.kind == "vllm" and 0 < config.num_gpus <= 0.5

"""An actor that owns one engine."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import ray

from actors.engine_process import start_engine
from actors.policy import LoadedPolicy, Measured, Pairs, Score, WakePart
from cluster.handles import EngineHandle, Packed, Ref, SavedWeights
from cluster.rollout.engine_faults import EngineLog, start_fault
from cluster.rollout.request_queue import RequestQueue, WeightsInTurn
from cluster.runtime.ray_session import collect_seldom, redirect_output, set_environment
from spag_ray.config.engine import EngineConfig
from spag_ray.errors import EngineError
from spag_ray.results.lines import EngineFigures
from spag_ray.weights.snapshot import Bucket, Snapshot

STARTING, IMPORTING = "starting its process", "importing"  # phases of a start; the engine itself names the next ones


class EngineActor:
    """Hosts one engine. Async: any number of calls run at once."""

    def __init__(self, log_path: str) -> None:
        redirect_output(log_path)
        collect_seldom()
        self._name = Path(log_path).stem
        self._log = EngineLog(Path(log_path))
        # Ray limits an actor to the threads it reserves; an engine may use every core.
        os.environ.pop("OMP_NUM_THREADS", None)
        self._policy: LoadedPolicy | None = None
        self._queue: RequestQueue | None = None
        self._turns = WeightsInTurn(self._play_saved)
        self._num_loads = 0
        self._is_updating = False  # from `begin_update` until a whole version has been loaded, on whatever way
        self._load_lock = asyncio.Lock()
        self._loaded: tuple[int, int] | None = None  # by `load`: (version, bytes)
        self._phase = STARTING

    def __repr__(self) -> str:
        """The name in Ray's dashboard and messages."""
        return self._name

    async def gpus(self) -> tuple[str, ...]:
        """Those that Ray reserves for it, each by its node and its number there."""
        node = ray.get_runtime_context().get_node_id()
        return tuple(f"{node}/{gpu}" for gpu in ray.get_gpu_ids())

    async def start(
        self, model: str, config: EngineConfig, name: str, version: int, seed: int, channel: str = "object_store"
    ) -> int:
        """Load the model; returns the version it plays. Raises EngineError with the cause, and ModelError."""
        set_environment(config.env)
        self._phase = IMPORTING
        try:
            self._policy = await start_engine(
                model, config, name, version=version, seed=seed, channel=channel, enters=self._enters
            )
        except EngineError as error:
            told = start_fault(str(error), self._log.text(), config.num_gpus > 0)
            raise type(error)(f"{told}; the whole trace is in {self._log.path}") from error
        self._queue = RequestQueue(self._policy, self._turns)
        return version

    async def exchange(
        self, client: str, requests: list[Packed], cancelled: list[str], gather_s: float
    ) -> list[Packed]:
        """See RequestQueue."""
        return await self._open_queue.exchange(client, requests, cancelled, gather_s)

    def _enters(self, phase: str) -> None:
        self._phase = phase

    async def pulse(self) -> str:
        """What the start is doing. Answered on a thread of its own (see Pulse): shows that the process runs, even if
        other calls are held up."""
        return self._phase

    async def heartbeat(self, hold_s: float = 0.0) -> tuple[int, float]:
        """(turns under way, seconds since one was answered: 0 while the engine loads weights). Answers after `hold_s`;
        ends this process within a second if the engine's own process has ended."""
        until = time.monotonic() + hold_s
        while True:
            if self._policy is not None and self._policy.is_dead:
                os._exit(1)
            if (left_s := until - time.monotonic()) <= 0:
                break
            await asyncio.sleep(min(left_s, 1.0))
        if self._queue is None:
            return 0, 0.0
        is_loading = self._num_loads or self._is_updating
        return self._queue.num_pending, 0.0 if is_loading else self._queue.idle_s

    async def figures(self) -> EngineFigures:
        """What the engine measured since the last call."""
        seconds, busy_s = self._open_queue.take_busy_s()
        found = self._engine.take_figures() if isinstance(self._engine, Measured) else EngineFigures()
        return replace(found, seconds=round(seconds, 3), busy_share=round(busy_s / seconds, 4) if seconds else None)

    @contextlib.contextmanager
    def _loading(self) -> Iterator[None]:
        self._num_loads += 1
        try:
            yield
            self._is_updating = False  # a version whose channel broke came this way instead
        finally:
            self._num_loads -= 1
            if self._queue is not None:
                self._queue.touch()

    async def score(self, sequences: Pairs, temperature: float, adapter: str | None = None) -> list[Score]:
        """See RequestQueue."""
        return await self._open_queue.score(sequences, temperature, adapter)

    async def load(
        self,
        version: int,
        num_tensors: int,
        refs: Sequence[Ref[Bucket]],
        adapter: Mapping[str, Any] | None = None,
        in_flight: bool = False,
    ) -> tuple[int, int]:
        """Load the snapshot whose buckets are `refs`; returns (version now played, bytes received). If Ray loses the
        call's reply, it is made again: it then waits for the first one, and returns what that has loaded."""
        async with self._load_lock:
            await self._turns.settled()
            if self._loaded is None or self._loaded[0] != version:
                snapshot = Snapshot(version, num_tensors, refs, adapter)
                with self._loading():
                    await self._engine.load(snapshot, in_flight)
                self._loaded = self._engine.version, snapshot.num_bytes
                if adapter is None:
                    self._turns.came(version)
            return self._loaded

    # For learner ranks that send weights themselves (learning/direct_channel.py); only a vLLM engine can take them.

    async def open_channel(self, init_info: Mapping[str, Any]) -> None:
        await self._vllm.open_channel(init_info)

    async def begin_update(self, in_flight: bool) -> None:
        self._is_updating = True
        await self._turns.settled()
        await self._vllm.begin_update(in_flight)

    async def take_update(self, update: Mapping[str, Any]) -> None:
        await self._vllm.take_update(update)

    async def end_update(self, version: int) -> None:
        with self._loading():
            await self._vllm.end_update(version)
        self._turns.came(version)

    async def played_version(self) -> int:
        return self._engine.version

    async def load_saved(self, saved: SavedWeights) -> None:
        """Play these folders: a model of this engine's shape, several of them in turn, or adapters for the model that
        it was started with."""
        if None in saved:
            await self._turns.hold(saved)
            return
        with self._loading():
            await self._vllm.hold({name: place for name, place in saved.items() if name is not None})

    async def _play_saved(self, folder: str, version: int) -> None:
        from actors.models import saved_snapshot

        with self._loading():
            # In a thread, as its buckets: reading a large model takes longer than a heartbeat may.
            await self._engine.load(await asyncio.to_thread(saved_snapshot, folder, version))

    async def sleep(self) -> None:
        await self._turns.settled()
        await self._engine.sleep()

    async def wake(self, part: WakePart = "all") -> None:
        await self._engine.wake(part)

    async def close(self) -> None:
        if self._policy is not None:
            await self._policy.close()

    @property
    def _engine(self) -> LoadedPolicy:
        assert self._policy is not None, "this engine was asked to work before it was started"
        return self._policy

    @property
    def _open_queue(self) -> RequestQueue:
        assert self._queue is not None, "this engine was asked to work before it was started"
        return self._queue

    @property
    def _vllm(self) -> Any:
        return self._engine


class Pulse:
    """Whether the process of an engine that loads its model still runs. Its actor has the concurrency group `GROUP`.
    The time limit applies from the first answer on: how long the process takes to start is not limited here."""

    GROUP = "pulse"

    def __init__(self, handle: EngineHandle, timeout_s: float) -> None:
        self._handle = handle
        self._timeout_s = timeout_s
        self._felt: float | None = None
        self.phase = STARTING  # as it said last
        self._asked = self._ask()

    def is_felt(self) -> bool:
        """False after `timeout_s` without an answer. Raises Ray's error if the process has ended."""
        if ray.wait([self._asked], timeout=0)[0]:
            self.phase = ray.get(self._asked)
            self._felt = time.monotonic()
            self._asked = self._ask()
        return self._felt is None or time.monotonic() - self._felt < self._timeout_s

    def _ask(self) -> Ref[str]:
        return self._handle.pulse.options(concurrency_group=self.GROUP).remote()


def slowest(pulses: Sequence[Pulse]) -> str:
    """What the engine that is furthest behind does, of those that start together."""
    begins = (STARTING, IMPORTING)
    phases = [pulse.phase for pulse in pulses]
    return next((phase for phase in begins if phase in phases), phases[0])

"""A policy whose engine lives in another actor.

    RemotePolicy (in an arena)                                EngineActor (owns the engine)
      generate ──> what all games ask ── exchange(requests) ──>  one task per request -> policy.generate
               <── futures ──────────── everything that has finished since the last exchange

One exchange is under way at a time and takes at most TICK_S: requests travel together and come back in the order in
which they finish, so a request waits for nobody but itself, and a thousand turns a second are a few dozen calls.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray

from actors.policy import Completion, Policy, Request, Sampling, Score, WakePart
from cluster.runtime import redirect_output
from spag_ray.config import Channel, EngineConfig
from spag_ray.errors import EngineError, EngineGoneError
from spag_ray.snapshot import Bucket, Snapshot

TICK_S = 0.06  # an exchange returns after this, also with nothing
_NOT_STARTED = "this engine was asked to work before it was started"


# Requests and answers travel as plain tuples: pickling an object of ours takes ten times as long as its fields.
# An answer that failed is (request_id, reason).
Packed = tuple


def pack_request(request: Request) -> Packed:
    """What an engine needs of a request; not `view`, which is for players in the arena's own process."""
    sampling = request.sampling
    fields = (
        sampling.temperature,
        sampling.max_new_tokens,
        sampling.top_k,
        sampling.top_p,
        sampling.seed,
        sampling.stop_token_ids,
    )
    return request.request_id, request.prompt_ids, fields


def unpack_request(packed: Packed) -> Request:
    request_id, prompt_ids, sampling = packed
    return Request(request_id, prompt_ids, Sampling(*sampling))


def pack_completion(completion: Completion) -> Packed:
    return (
        completion.request_id,
        completion.token_ids,
        completion.logprobs,
        completion.first_version,
        completion.last_version,
        completion.finish_reason,
    )


class _FromObjectStore:
    """A Snapshot whose buckets are fetched from Ray's object store one at a time."""

    def __init__(
        self, version: int, num_tensors: int, refs: Sequence[ray.ObjectRef], adapter: Mapping[str, Any] | None
    ) -> None:
        self.version = version
        self.num_tensors = num_tensors
        self.adapter = adapter
        self.num_bytes = 0
        self._refs = refs

    async def buckets(self) -> Any:
        for ref in self._refs:
            bucket: Bucket = await ref
            self.num_bytes += bucket.payload.nbytes
            yield bucket


class Desk:
    """Where a policy's requests come in and its answers wait to be fetched, each client's apart."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._finished: dict[str, list[Packed]] = {}
        self._arrivals: dict[str, asyncio.Event] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._num_scores = 0
        self._answered = time.monotonic()

    @property
    def num_pending(self) -> int:
        return len(self._tasks) + self._num_scores

    @property
    def idle_s(self) -> float:
        """Seconds since the last answer, or since something was first asked after a silence."""
        return time.monotonic() - self._answered

    def touch(self) -> None:
        """Nothing could be answered until now."""
        self._answered = time.monotonic()

    async def exchange(
        self, client: str, requests: list[Packed], cancelled: list[str], gather_s: float
    ) -> list[Packed]:
        """Begin to answer `requests`, stop answering `cancelled`; all answers since the last exchange. Returns
        `gather_s` after the first of them has come, with what has come by then."""
        for request_id in cancelled:
            if (task := self._tasks.get(request_id)) is not None:
                task.cancel()
        if requests and not self.num_pending:
            self.touch()
        for packed in requests:
            request = unpack_request(packed)
            task = asyncio.create_task(self._answer(client, request))
            self._tasks[request.request_id] = task
            task.add_done_callback(partial(self._forget, request.request_id))
        arrival = self._arrivals.setdefault(client, asyncio.Event())
        try:
            async with asyncio.timeout(TICK_S):
                await arrival.wait()
                await asyncio.sleep(gather_s)
        except TimeoutError:
            pass
        arrival.clear()
        return self._finished.pop(client, [])

    async def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float) -> list[Score]:
        """What the policy says; until then one thing more is pending."""
        if not self.num_pending:
            self.touch()
        self._num_scores += 1
        try:
            return await self._policy.score(sequences, temperature)
        except Exception:
            self._end_if_dead()
            raise
        finally:
            self._num_scores -= 1
            self.touch()

    def _end_if_dead(self) -> None:
        """Of a process that has lost the one behind it: it will answer nobody any more."""
        if self._policy.is_dead:
            os._exit(1)

    def _forget(self, request_id: str, task: asyncio.Task[None]) -> None:
        del self._tasks[request_id]

    async def _answer(self, client: str, request: Request) -> None:
        try:
            (completion,) = await self._policy.generate([request])
            answer = pack_completion(completion)
        except Exception as error:  # goes to the arena that asked, which raises it
            answer = (request.request_id, f"{type(error).__name__}: {error}")
            self._end_if_dead()
        self.touch()
        self._finished.setdefault(client, []).append(answer)
        self._arrivals.setdefault(client, asyncio.Event()).set()


class EngineActor:
    """Hosts one engine. Async: any number of calls run at once."""

    def __init__(self, log_path: str) -> None:
        redirect_output(log_path)
        self._name = Path(log_path).stem
        # Ray pins actors to the threads they reserve; an engine uses the cores that are there.
        os.environ.pop("OMP_NUM_THREADS", None)
        self._policy: Policy | None = None
        self._desk: Desk | None = None
        self._num_pauses = 0

    def __repr__(self) -> str:
        """What Ray's pages and messages call it."""
        return self._name

    async def start(
        self, model: str, config: EngineConfig, name: str, version: int, seed: int, channel: Channel = "object_store"
    ) -> int:
        """Load the model; returns the version it plays."""
        if config.kind == "vllm":
            from actors.vllm_policy import VllmPolicy

            self._policy = await VllmPolicy.start(model, config, name, version, seed, channel)
        else:
            from actors.transformers_policy import TransformersPolicy

            self._policy = TransformersPolicy(model, config.dtype, config.max_model_len, name, version)
        self._desk = Desk(self._policy)
        return version

    async def exchange(
        self, client: str, requests: list[Packed], cancelled: list[str], gather_s: float
    ) -> list[Packed]:
        """See Desk."""
        return await self._open_desk.exchange(client, requests, cancelled, gather_s)

    async def heartbeat(self) -> tuple[int, float]:
        """(turns under way, seconds since one was answered); while it takes weights nothing is expected."""
        if self._policy is not None and self._policy.is_dead:
            os._exit(1)
        if self._desk is None or self._num_pauses:
            return 0, 0.0
        return self._desk.num_pending, self._desk.idle_s

    @contextlib.contextmanager
    def _pausing(self) -> Iterator[None]:
        self._num_pauses += 1
        try:
            yield
        finally:
            self._num_pauses -= 1
            if self._desk is not None:
                self._desk.touch()

    async def score(self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float) -> list[Score]:
        """See Desk."""
        return await self._open_desk.score(sequences, temperature)

    async def load(
        self,
        version: int,
        num_tensors: int,
        refs: list[ray.ObjectRef],
        adapter: Mapping[str, Any] | None = None,
        in_flight: bool = False,
    ) -> tuple[int, int]:
        """Take the snapshot whose buckets lie behind `refs`; returns (version now played, bytes that came)."""
        snapshot = _FromObjectStore(version, num_tensors, refs, adapter)
        with self._pausing():
            await self._engine.load(snapshot, in_flight)
        return self._engine.version, snapshot.num_bytes

    # How a learner's ranks send weights themselves (cluster/transfer.py); only a vLLM engine can take them.

    async def open_channel(self, init_info: Mapping[str, Any]) -> None:
        await self._vllm.open_channel(init_info)

    async def begin_update(self, in_flight: bool) -> None:
        self._num_pauses += 1
        await self._vllm.begin_update(in_flight)

    async def take_update(self, update: Mapping[str, Any]) -> None:
        await self._vllm.take_update(update)

    async def end_update(self, version: int) -> None:
        await self._vllm.end_update(version)
        self._num_pauses -= 1
        if self._desk is not None:
            self._desk.touch()

    async def played_version(self) -> int:
        return self._engine.version

    async def load_saved(self, folder: str, version: int) -> int:
        """Take the weights of a model folder of this engine's shape; returns the version now played."""
        from actors.tensors import saved_snapshot

        with self._pausing():
            await self._engine.load(saved_snapshot(folder, version))
        return self._engine.version

    async def sleep(self) -> None:
        await self._engine.sleep()

    async def wake(self, part: WakePart = "all") -> None:
        await self._engine.wake(part)

    async def close(self) -> None:
        if self._policy is not None:
            await self._policy.close()

    @property
    def _engine(self) -> Policy:
        if self._policy is None:
            raise EngineError(_NOT_STARTED)
        return self._policy

    @property
    def _open_desk(self) -> Desk:
        if self._desk is None:
            raise EngineError(_NOT_STARTED)
        return self._desk

    @property
    def _vllm(self) -> Any:
        return self._engine


@dataclass
class Pace:
    """How long an exchange gathers answers: the more engines one arena talks to, the longer, because each call costs
    it (and the engine) a quarter of a millisecond of CPU; a turn takes a second or more."""

    num_engines: int = 1

    @property
    def gather_s(self) -> float:
        return min(0.003 * self.num_engines, 0.04)


class RemotePolicy:
    """Policy over an EngineActor's handle."""

    def __init__(self, handle: Any, name: str, version: int = 0, pace: Pace | None = None) -> None:
        self.name = name
        self._pace = pace or Pace()
        self._handle = handle
        self._version = version
        self._client = uuid.uuid4().hex
        self._unsent: list[Request] = []
        self._pending: dict[str, asyncio.Future[Completion]] = {}
        self._cancelled: list[str] = []
        self._exchanging: asyncio.Task[None] | None = None

    @property
    def version(self) -> int:
        return self._version

    @property
    def is_dead(self) -> bool:
        return False

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        loop = asyncio.get_running_loop()
        futures = []
        for request in requests:
            if request.request_id in self._pending:
                raise EngineError(f"request {request.request_id} was asked twice at once")
            future = loop.create_future()
            self._pending[request.request_id] = future
            futures.append(future)
        self._unsent.extend(requests)
        if self._exchanging is None or self._exchanging.done():
            self._exchanging = loop.create_task(self._exchange())
        try:
            return [await future for future in futures]
        except asyncio.CancelledError:
            for request in requests:
                if self._pending.pop(request.request_id, None) is not None:
                    self._cancelled.append(request.request_id)
            raise

    async def _exchange(self) -> None:
        await asyncio.sleep(0)  # what other games ask in this tick of the loop goes along
        try:
            while self._pending:
                requests, self._unsent = [pack_request(request) for request in self._unsent], []
                cancelled, self._cancelled = self._cancelled, []
                gather_s = self._pace.gather_s
                for request_id, *answer in await self._handle.exchange.remote(
                    self._client, requests, cancelled, gather_s
                ):
                    future = self._pending.pop(request_id, None)
                    if future is None or future.done():
                        continue
                    if len(answer) == 1:
                        future.set_exception(EngineError(f"engine {self.name}: {answer[0]}"))
                    else:
                        future.set_result(Completion(request_id, *answer))
                await asyncio.sleep(0)  # games that got their answer ask for their next turn now: it goes along
        except ray.exceptions.RayError as error:
            self._fail(self._fault(error))

    def _fault(self, error: ray.exceptions.RayError) -> EngineError:
        """What Ray says of a call to the engine, as this policy's error."""
        first_line = str(error).splitlines()[0]
        if isinstance(error, ray.exceptions.RayActorError):
            return EngineGoneError(f"engine {self.name} is gone: {first_line}")
        cause = getattr(error, "cause", None)
        return EngineError(f"engine {self.name}: {cause or first_line}")

    def _fail(self, error: EngineError) -> None:
        lost, self._pending, self._unsent = self._pending, {}, []
        for future in lost.values():
            if not future.done():
                future.set_exception(error)

    async def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float = 1.0
    ) -> list[Score]:
        try:
            scores: list[Score] = await self._handle.score.remote(sequences, temperature)
        except ray.exceptions.RayError as error:
            raise self._fault(error) from error
        return scores

    async def load(self, snapshot: Snapshot, in_flight: bool = False) -> None:
        refs = [ray.put(bucket) async for bucket in snapshot.buckets()]
        self._version, _ = await self._handle.load.remote(
            snapshot.version, snapshot.num_tensors, refs, snapshot.adapter, in_flight
        )

    async def sleep(self) -> None:
        await self._handle.sleep.remote()

    async def wake(self, part: WakePart = "all") -> None:
        await self._handle.wake.remote(part)

    async def close(self) -> None:
        await self._handle.close.remote()

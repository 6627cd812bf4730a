"""A policy whose engine runs in another actor.

    RemotePolicy (in an arena)                                EngineActor (owns the engine)
      generate ──> all games' turns ──── exchange(requests) ──>  one task per request -> policy.generate
               <── futures ──────────── everything that has finished since the last exchange

The engine holds an exchange until it has answers, so it answers by returning: nothing is polled. The next exchange
brings the games' next requests. Requests that come while an exchange is held are sent with another one, which ends the
held exchange and takes its place. So requests travel together and come back in the order in which they finish, no
request waits for another, and the number of calls depends on the number of turns alone. A held exchange also fails as
soon as the engine's process ends.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

import ray

from actors.policy import Completion, Request, Score, WakePart
from cluster.handles import EngineHandle
from cluster.rollout.request_queue import pack_request
from spag_ray.errors import EngineError, EngineGoneError
from spag_ray.weights.snapshot import Snapshot

CALLS_PER_S = 400.0  # of an arena: each costs it, and the engine, a quarter of a millisecond of CPU
MAX_GATHER_S = 0.25  # a turn takes a second or more


@dataclass
class Pace:
    """How long answers, and requests beside a held exchange, are gathered before they are sent: so long that an arena
    with many engines makes no more than CALLS_PER_S calls."""

    num_engines: int = 1

    @property
    def gather_s(self) -> float:
        return min(self.num_engines / CALLS_PER_S, MAX_GATHER_S)


class RemotePolicy:
    """Policy over an EngineActor's handle."""

    def __init__(self, handle: EngineHandle, name: str, version: int = 0, pace: Pace | None = None) -> None:
        self.name = name
        self._pace = pace or Pace()
        self._handle = handle
        self._version = version
        self._client = uuid.uuid4().hex
        self._unsent: list[Request] = []
        self._pending: dict[str, asyncio.Future[Completion]] = {}
        self._cancelled: list[str] = []
        self._num_held = 0  # exchanges that have not returned; the newest is held by the engine
        self._sending: asyncio.TimerHandle | None = None
        self._exchanges: set[asyncio.Task[None]] = set()

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
        self._send_soon()
        try:
            return [await future for future in futures]
        except asyncio.CancelledError:
            for request in requests:
                if self._pending.pop(request.request_id, None) is not None:
                    self._cancelled.append(request.request_id)
            self._send_soon()
            raise

    def _send_soon(self) -> None:
        """Send what is unsent: beside a held exchange after others were gathered, else in the next tick of the loop."""
        if self._sending is None:
            wait_s = self._pace.gather_s if self._num_held else 0.0
            self._sending = asyncio.get_running_loop().call_later(wait_s, self._send)

    def _send(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        exchange = asyncio.get_running_loop().create_task(self._exchange())
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)

    async def _exchange(self) -> None:
        requests = [pack_request(each) for each in self._unsent if each.request_id in self._pending]
        self._unsent = []
        cancelled, self._cancelled = self._cancelled, []
        self._num_held += 1
        try:
            answers = await self._handle.exchange.remote(self._client, requests, cancelled, self._pace.gather_s)
        except ray.exceptions.RayError as error:
            self._num_held -= 1
            self._fail(self._fault(error))
            return
        self._num_held -= 1
        for request_id, *answer in answers:
            future = self._pending.pop(request_id, None)
            if future is None or future.done():
                continue
            if len(answer) == 1:
                future.set_exception(EngineError(f"engine {self.name}: {answer[0]}"))
            else:
                future.set_result(Completion(request_id, *answer))
        await asyncio.sleep(0)  # games that got their answer now request their next turn: it is sent too
        if self._pending and not self._num_held:
            self._send()

    def _fault(self, error: ray.exceptions.RayError) -> EngineError:
        """Ray's error of a call to the engine, as this policy's error."""
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
        self,
        sequences: Sequence[tuple[Sequence[int], Sequence[int]]],
        temperature: float = 1.0,
        adapter: str | None = None,
    ) -> list[Score]:
        try:
            return await self._handle.score.remote(sequences, temperature, adapter)
        except ray.exceptions.RayError as error:
            raise self._fault(error) from error

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

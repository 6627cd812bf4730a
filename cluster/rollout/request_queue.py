"""An engine's queue: requests come in, and answers wait to be fetched."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Sequence
from functools import partial

from actors.policy import Completion, Policy, Request, Sampling, Score
from cluster.handles import Packed

HOLD_S = 10.0  # an exchange returns after this, even with no answers; so a call whose reply was lost costs no more


def pack_request(request: Request) -> Packed:
    """The part of a request that an engine needs; not `view`, which is for players in the arena's own process."""
    sampling = request.sampling
    fields = (
        sampling.temperature,
        sampling.max_new_tokens,
        sampling.top_k,
        sampling.top_p,
        sampling.seed,
        sampling.stop_token_ids,
    )
    return request.request_id, request.prompt_ids, fields, request.adapter


def unpack_request(packed: Packed) -> Request:
    request_id, prompt_ids, sampling, adapter = packed
    return Request(request_id, prompt_ids, Sampling(*sampling), adapter=adapter)


def pack_completion(completion: Completion) -> Packed:
    return (
        completion.request_id,
        completion.token_ids,
        completion.logprobs,
        completion.first_version,
        completion.last_version,
        completion.finish_reason,
    )


class RequestQueue:
    """Requests to a policy, and its answers until they are fetched, separate for each client."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._finished: dict[str, list[Packed]] = {}
        self._held: dict[str, _Held] = {}
        self._tasks: dict[str, asyncio.Task[None]] = {}
        self._num_scores = 0
        self._answered = time.monotonic()

    @property
    def num_pending(self) -> int:
        return len(self._tasks) + self._num_scores

    @property
    def idle_s(self) -> float:
        """Seconds since the last answer, or since the first request after an idle time."""
        return time.monotonic() - self._answered

    def touch(self) -> None:
        """Restart the idle time: nothing could be answered until now."""
        self._answered = time.monotonic()

    async def exchange(
        self, client: str, requests: list[Packed], cancelled: list[str], gather_s: float
    ) -> list[Packed]:
        """Start to answer `requests`, stop answering `cancelled`; returns all answers since the last exchange, at
        `gather_s` after the first of them. The client's next exchange ends this one at once, and takes its place."""
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
        before = self._held.get(client)
        held = self._held[client] = _Held(gather_s)
        if before is not None:
            before.end()  # and takes what has finished so far
        elif self._finished.get(client):
            held.answered()
        try:
            await held.ended
        finally:
            if self._held.get(client) is held:
                del self._held[client]
        return self._finished.pop(client, [])

    async def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float, adapter: str | None = None
    ) -> list[Score]:
        """The policy's scores; the call counts as one pending request."""
        if not self.num_pending:
            self.touch()
        self._num_scores += 1
        try:
            return await self._policy.score(sequences, temperature, adapter)
        except Exception:
            self._end_if_dead()
            raise
        finally:
            self._num_scores -= 1
            self.touch()

    def _end_if_dead(self) -> None:
        """End this process if the engine process behind it has died: it can answer no more requests."""
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
        if (held := self._held.get(client)) is not None:
            held.answered()


class _Held:
    """An exchange that has not returned yet."""

    def __init__(self, gather_s: float) -> None:
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[None] = loop.create_future()
        self._gather_s = gather_s
        self._is_answered = False
        self._timer = loop.call_later(HOLD_S, self.end)

    def answered(self) -> None:
        """There is an answer; the exchange returns once others have been gathered."""
        if not self._is_answered:
            self._is_answered = True
            self._timer.cancel()
            self._timer = asyncio.get_running_loop().call_later(self._gather_s, self.end)

    def end(self) -> None:
        self._timer.cancel()
        if not self.ended.done():
            self.ended.set_result(None)

"""An engine's queue: requests come in, and answers wait to be fetched.

A client is a RemotePolicy, and there may be several: an arena that replaces a dead one asks for the same turns of the
same games. So requests are kept by client, and the engine knows each by an id that was never used before.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from itertools import count
from operator import attrgetter

from actors.policy import LoadedPolicy, Pairs, Request, Sampling, Score
from cluster.handles import Packed, SavedWeights
from spag_ray.errors import EngineError

log = logging.getLogger(__name__)

HOLD_S = 10.0  # an exchange returns after this, even with no answers; so a call whose reply was lost costs no more
SILENT_S = 120.0  # a client that awaits a turn exchanges every HOLD_S: one that has not for so long is dead

# In the order of their class, which is made of them again.
_fields_of_sampling = attrgetter("temperature", "max_new_tokens", "top_k", "top_p", "seed", "stop_token_ids")
_fields_of_answer = attrgetter("token_ids", "logprobs", "first_version", "last_version", "finish_reason")
_NOBODY = "nobody: a change of weights is under way, or has failed"


def pack_request(request: Request, sent_as: str) -> Packed:
    """The part of a request that an engine needs, under this id; not `view`, which is for players in the arena's own
    process."""
    return sent_as, request.prompt_ids, _fields_of_sampling(request.sampling), request.adapter


def unpack_request(packed: Packed, request_id: str, adapter: str | None) -> Request:
    """The request as the policy is asked: under another id, and with the adapter that now has the player's weights."""
    _, prompt_ids, sampling, _ = packed
    return Request(request_id, prompt_ids, Sampling(*sampling), adapter=adapter)


@dataclass(eq=False)
class _Client:
    """What a client has asked for and not fetched: `tasks` by request id. `held`: its exchange that has not returned.
    `silence`: forgets it SILENT_S after its last exchange began."""

    tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict)
    finished: list[Packed] = field(default_factory=list)
    held: _Held | None = None
    silence: asyncio.TimerHandle | None = None


class RequestQueue:
    """Requests to a policy, and its answers until they are fetched, separate for each client. `turns`: whose weights
    the policy plays when; None: it plays one player."""

    def __init__(self, policy: LoadedPolicy, turns: WeightsInTurn | None = None) -> None:
        self._policy = policy
        self._turns = turns or WeightsInTurn()
        self._clients: dict[str, _Client] = {}
        self._serials = count()
        self._num_scores = 0
        self._answered = self._counted = self._asked = time.monotonic()
        self._busy_s, self._is_busy = 0.0, False

    @property
    def num_pending(self) -> int:
        return sum(len(client.tasks) for client in self._clients.values()) + self._num_scores

    @property
    def idle_s(self) -> float:
        """Seconds since the last answer, or since the first request after an idle time."""
        return time.monotonic() - self._answered

    def take_busy_s(self) -> tuple[float, float]:
        """(seconds since the last call, those of them with something to answer)"""
        self._count_busy()
        found = self._counted - self._asked, self._busy_s
        self._asked, self._busy_s = self._counted, 0.0
        return found

    def _count_busy(self) -> None:
        """Call when there is something new to answer, or less than before."""
        now = time.monotonic()
        if self._is_busy:
            self._busy_s += now - self._counted
        self._counted, self._is_busy = now, self.num_pending > 0

    def touch(self) -> None:
        """Restart the idle time: nothing could be answered until now."""
        self._answered = time.monotonic()

    async def exchange(
        self, client: str, requests: list[Packed], cancelled: list[str], gather_s: float
    ) -> list[Packed]:
        """Start to answer `requests`, stop answering `cancelled`; returns all answers since the last exchange, at
        `gather_s` after the first of them. The client's next exchange ends this one at once, and takes its place."""
        asker = self._clients.setdefault(client, _Client())
        if asker.silence is not None:
            asker.silence.cancel()
        asker.silence = asyncio.get_running_loop().call_later(SILENT_S, self._forget, client)
        for request_id in cancelled:
            if (task := asker.tasks.pop(request_id, None)) is not None:
                task.cancel()
        if requests and not self.num_pending:
            self.touch()
        for packed in requests:
            request_id = packed[0]
            assert request_id not in asker.tasks, f"{request_id} is asked for twice at once"
            asker.tasks[request_id] = asyncio.create_task(self._answer(asker, packed))
        self._count_busy()
        before = asker.held
        held = asker.held = _Held(gather_s)
        if before is not None:
            before.end()  # and takes what has finished so far
        elif asker.finished:
            held.answered()
        try:
            await held.ended
        finally:
            if asker.held is held:
                asker.held = None
        answers, asker.finished = asker.finished, []
        return answers

    def _forget(self, client: str) -> None:
        """Stop answering a client that is not heard of any more. If it does live, it asks again after its timeout."""
        asker = self._clients.pop(client)
        if asker.tasks or asker.finished:
            log.warning(
                "client %s is silent for %g s: %d turns are cancelled, %d answers dropped",
                client,
                SILENT_S,
                len(asker.tasks),
                len(asker.finished),
            )
        for task in asker.tasks.values():
            task.cancel()
        self._count_busy()

    async def score(self, sequences: Pairs, temperature: float, adapter: str | None = None) -> list[Score]:
        """The policy's scores; the call counts as one pending request."""
        if not self.num_pending:
            self.touch()
        self._num_scores += 1
        self._count_busy()
        try:
            async with self._turns.of(adapter) as held:
                return await self._policy.score(sequences, temperature, held)
        except Exception:
            self._end_if_dead()
            raise
        finally:
            self._num_scores -= 1
            self._count_busy()
            self.touch()

    def _end_if_dead(self) -> None:
        """End this process if the engine process behind it has died: it can answer no more requests."""
        if self._policy.is_dead:
            os._exit(1)

    async def _answer(self, asker: _Client, packed: Packed) -> None:
        """The task of a request. Whoever cancels it has taken it off the list."""
        request_id, *_, player = packed
        answer: Packed
        try:
            async with self._turns.of(player) as adapter:
                alone = unpack_request(packed, f"{request_id}@{next(self._serials)}", adapter)
                (completion,) = await self._policy.generate([alone])
            answer = (request_id, *_fields_of_answer(completion))
        except Exception as error:  # goes to the arena that asked, which raises it
            answer = (request_id, f"{type(error).__name__}: {error}")
            self._end_if_dead()
        del asker.tasks[request_id]
        self._count_busy()
        self.touch()
        asker.finished.append(answer)
        if asker.held is not None:
            asker.held.answered()


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


class WeightsInTurn:
    """Several players on one engine, which takes the weights of one after another's; at first none, and requests then
    only name adapters. `play`: None where no players come.

        turns = WeightsInTurn(play)                  play(folder, version): from now on the engine plays these weights
        await turns.hold({None: ("models/spag-2", 3), "base": ("/models/tiny", 0)})
        async with turns.of("base") as adapter:      from here on the engine plays the base model
            await policy.generate([...])             of requests that name `base`
        turns.came(4)                                the engine got weights in another way: it holds no players any more

    In a match all games ask for the attacker's turn, then for the defender's. So the engine changes weights when the
    requests of the current player are answered and another player's wait: about as often as a game has turns, whatever
    the number of games. All of it happens in the event loop of the engine's actor; only a change of weights takes time.
    """

    def __init__(self, play: Callable[[str, int], Awaitable[None]] | None = None) -> None:
        self._play = play
        self._players: SavedWeights = {}
        self._current: str | None = None
        self._num_running = 0
        self._all_answered = asyncio.Event()
        self._change: asyncio.Task[None] | None = None

    async def hold(self, players: SavedWeights) -> None:
        """Play these {name in requests: (folder, version)} in turn, and first `None`, whose requests name nobody. Alone
        it is the only one. The requests of earlier players have ended."""
        self._players = {}
        await self.settled()
        await self._load(players[None])
        self._current = None
        self._players = players if len(players) > 1 else {}

    async def settled(self) -> None:
        """Wait for a change of weights that is under way: the request that began it may have been given up, and a load
        beside another one, or beside sleep, would mix weights or write to memory that is gone."""
        while (change := self._change) is not None:
            await asyncio.wait([change])

    def came(self, version: int) -> None:
        """The engine was given whole weights of `version` in another way, as a newly started one is before it plays."""
        if self._players and self._players[None][1] == version:
            self._current = None
        else:
            self._players = {}

    @contextlib.asynccontextmanager
    async def of(self, name: str | None) -> AsyncIterator[str | None]:
        """In this block the engine plays the weights of this player. Yields the adapter that a request has to name.

        Raises EngineError for a player that is not held, and what loading weights raises.
        """
        if not self._players:
            yield name
            return
        if name not in self._players:
            held = ", ".join(sorted(each or "the newest" for each in self._players))
            raise EngineError(f"this engine has no weights of {name!r}; it plays {held} in turn")
        await self._until_current(name)
        self._num_running += 1
        try:
            yield None
        finally:
            self._num_running -= 1
            if not self._num_running:
                self._all_answered.set()

    async def _until_current(self, name: str | None) -> None:
        while True:
            if self._change is not None:
                await asyncio.shield(self._change)  # a request that is given up leaves no half-loaded weights behind
            elif self._current == name:
                return
            elif self._num_running:
                self._all_answered.clear()
                await self._all_answered.wait()
            else:
                # Who begins a change is the first to be woken by its end, before anybody who waits for other weights.
                self._change = asyncio.create_task(self._change_to(name))

    async def _change_to(self, name: str | None) -> None:
        self._current = _NOBODY
        try:
            await self._load(self._players[name])
            self._current = name
        finally:
            self._change = None

    async def _load(self, saved: tuple[str, int]) -> None:
        assert self._play is not None, "an engine that holds players has a way to play them"
        await self._play(*saved)

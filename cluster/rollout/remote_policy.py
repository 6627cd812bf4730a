"""A policy whose engine runs in another actor.

    RemotePolicy (in an arena)                                EngineActor (owns the engine)
      generate ──> all games' turns ──── exchange(requests) ──>  one task per request -> policy.generate
               <── futures ──────────── everything that has finished since the last exchange

The engine holds an exchange until it has answers, so it answers by returning: nothing is polled. The next exchange
brings the games' next requests. Requests that come while an exchange is held are sent with another one, which ends the
held exchange and takes its place. So requests travel together and come back in the order in which they finish, no
request waits for another, and the number of calls depends on the number of turns alone. A held exchange also fails as
soon as the engine's process ends.

If Ray cannot reach the engine (the network failed; the engine may live), a call or its reply is lost, and nobody knows
which. So every pending turn is then cancelled and asked for again, under another id: an answer to the old one that
still comes is nobody's. Any other error of a call fails all pending turns at once.
"""

from __future__ import annotations

import asyncio
import logging
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import count

import ray

from actors.policy import Completion, Pairs, Request, Score
from cluster.handles import EngineHandle
from cluster.rollout.request_queue import Packed, pack_request
from cluster.runtime.ray_session import Retry, first_line, is_gone, is_unavailable
from spag_ray.errors import EngineError, EngineGoneError

log = logging.getLogger(__name__)

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


@dataclass(eq=False)
class _Turn:
    """A request that waits for its answer; `sent_as` is its id at the engine, which no other request ever had."""

    request: Request
    sent_as: str = ""
    answer: asyncio.Future[Completion] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    def end(self, found: Completion | EngineError) -> None:
        if self.answer.done():  # its game was given up in this tick
            return
        if isinstance(found, EngineError):
            self.answer.set_exception(found)
        else:
            self.answer.set_result(found)


class RemotePolicy:
    """Policy over an EngineActor's handle. `within_s`: an engine that cannot be reached for so long is gone."""

    def __init__(self, handle: EngineHandle, name: str, pace: Pace | None = None, within_s: float = 600.0) -> None:
        self.name = name
        self._pace = pace or Pace()
        self._handle = handle
        self._within_s = within_s
        self._client = uuid.uuid4().hex
        self._serials = count(1)
        self._unsent: list[_Turn] = []
        self._pending: dict[str, _Turn] = {}  # by `sent_as`
        self._cancelled: list[str] = []
        self._num_held = 0  # exchanges that have not returned; the newest is held by the engine
        self._sending: asyncio.TimerHandle | None = None
        self._retry: Retry | None = None  # since the engine cannot be reached
        self._is_pausing = False  # before it is asked again
        self._exchanges: set[asyncio.Task[None]] = set()

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        turns = [_Turn(request) for request in requests]
        self._ask(turns)
        self._send_soon()
        try:
            return [await turn.answer for turn in turns]
        except (Exception, asyncio.CancelledError):  # one has failed, or the game is given up
            if self._give_up([turn for turn in turns if turn.sent_as in self._pending]):
                self._send_soon()
            raise

    def _ask(self, turns: Sequence[_Turn]) -> None:
        """Make these pending and unsent, under new ids."""
        for turn in turns:
            turn.sent_as = f"{turn.request.request_id}~{next(self._serials)}"
            self._pending[turn.sent_as] = turn
        self._unsent.extend(turns)

    def _give_up(self, turns: Sequence[_Turn]) -> bool:
        """The engine is to stop answering these pending turns; whether there are any."""
        for turn in turns:
            del self._pending[turn.sent_as]
            self._cancelled.append(turn.sent_as)
        return bool(turns)

    def _send_soon(self) -> None:
        """Send what is unsent: beside a held exchange after others were gathered, else in the next tick of the loop."""
        if self._sending is None:
            wait_s = self._pace.gather_s if self._num_held else 0.0
            self._sending = asyncio.get_running_loop().call_later(wait_s, self._send)

    def _send(self) -> None:
        if self._sending is not None:
            self._sending.cancel()
            self._sending = None
        self._is_pausing = False
        exchange = asyncio.get_running_loop().create_task(self._exchange())
        self._exchanges.add(exchange)
        exchange.add_done_callback(self._exchanges.discard)

    async def _exchange(self) -> None:
        """Nobody awaits this task: every error of it goes to the pending turns."""
        try:
            answers = await self._call()
            self._retry = None
            self._take(answers)
        except Exception as error:
            self._failed(error)
            return
        await asyncio.sleep(0)  # games that got their answer now request their next turn: it is sent too
        if self._pending and not self._num_held:
            self._send()

    async def _call(self) -> list[Packed]:
        """Send what is unsent; returns the answers."""
        unsent, self._unsent = self._unsent, []
        cancelled, self._cancelled = self._cancelled, []
        requests = [pack_request(turn.request, turn.sent_as) for turn in unsent if turn.sent_as in self._pending]
        self._num_held += 1
        try:
            return await self._handle.exchange.remote(self._client, requests, cancelled, self._pace.gather_s)
        finally:
            self._num_held -= 1

    def _take(self, answers: Sequence[Packed]) -> None:
        for sent_as, *answer in answers:
            if (turn := self._pending.get(sent_as)) is None:
                continue
            if len(answer) == 1:
                found: Completion | EngineError = EngineError(f"engine {self.name}: {answer[0]}")
            else:
                found = Completion(turn.request.request_id, *answer)
            del self._pending[sent_as]
            turn.end(found)

    def _failed(self, error: Exception) -> None:
        """A call has failed: all pending turns fail, or, if the engine may live, are asked for again after a pause."""
        if not is_unavailable(error):
            self._fail(self._fault(error))
            return
        if self._is_pausing:  # several exchanges fail together
            return
        if not self._pending:
            self._retry = None
            return
        self._retry = self._retry or Retry(self._within_s)
        if (pause_s := self._retry.pause_s()) is None:
            self._retry = None
            self._fail(self._unreached())
            return
        log.warning("engine %s is asked again in %g s: %s", self.name, pause_s, first_line(error))
        turns = list(self._pending.values())
        self._give_up(turns)
        self._unsent = []
        self._ask(turns)
        if self._sending is not None:
            self._sending.cancel()
        self._is_pausing = True
        self._sending = asyncio.get_running_loop().call_later(pause_s, self._send)

    def _unreached(self) -> EngineError:
        """Not gone: the run may reach it, and would not give it to this arena again. Turns go to others meanwhile."""
        return EngineError(f"engine {self.name} could not be reached for {self._within_s:g} s")

    def _fault(self, error: Exception) -> EngineError:
        """The error of a call to the engine, as this policy's error."""
        if is_gone(error):
            return EngineGoneError(f"engine {self.name} is gone: {first_line(error)}")
        if isinstance(error, ray.exceptions.RayError):
            return EngineError(f"engine {self.name}: {getattr(error, 'cause', None) or first_line(error)}")
        return EngineError(f"engine {self.name}: {type(error).__name__}: {first_line(error)}")

    def _fail(self, error: EngineError) -> None:
        """Fail every pending turn."""
        lost = list(self._pending.values())
        if lost:
            log.warning("%d turns fail: %s", len(lost), error)
        self._give_up(lost)
        self._unsent = []
        for turn in lost:
            turn.end(error)

    async def score(self, sequences: Pairs, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
        retry = Retry(self._within_s)
        while True:
            try:
                return await self._handle.score.remote(sequences, temperature, adapter)
            except ray.exceptions.RayError as error:
                if not is_unavailable(error):
                    raise self._fault(error) from error
                if (pause_s := retry.pause_s()) is None:
                    raise self._unreached() from error
            await asyncio.sleep(pause_s)

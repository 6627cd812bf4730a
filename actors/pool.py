"""The engines that play one policy, as an arena sees them: which engine takes the next game or a retried turn.

A game stays with its engine, whose prefix cache holds the dialogue. If a turn fails (the engine died, refused or timed
out), it is retried on another engine. Engines join and leave while games run. An engine may play for several arenas:
each then gives it games in proportion to its share. An arena knows every engine of the pool. Those of which it has no
share take its games only when no other can: in a retry, or while its own engines take no new games.
"""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from actors.policy import Completion, Pairs, Policy, Request, Score
from spag_ray.errors import EngineError, EngineGoneError

log = logging.getLogger(__name__)


@dataclass(eq=False)
class Member:
    """An engine of a pool. `share`: the part of it that plays for this arena, or 0. `is_open`: whether it takes new
    games; `games`: the number assigned to it now. `changed`: set when one of them has ended or moved, and when the
    engine is dropped."""

    name: str
    policy: Policy
    share: float = 1.0
    is_open: bool = True
    games: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)


class EnginePool:
    """`policy_name`: recorded in turns. `turn_timeout_s`: limit for one answer. `join_timeout_s`: limit for the wait
    for an engine while there is none; time in which one waits for room does not count. `max_tries`: per turn.
    `retry_pause_s`: the first pause before a turn is retried on an engine that has failed it; the next ones are longer.
    `timeouts`: how many turns had no answer in time."""

    def __init__(
        self,
        policy_name: str,
        turn_timeout_s: float = 600.0,
        join_timeout_s: float = 600.0,
        max_tries: int = 3,
        retry_pause_s: float = 2.0,
    ) -> None:
        self.policy_name = policy_name
        self.timeouts = 0
        self._turn_timeout_s = turn_timeout_s
        self._join_timeout_s = join_timeout_s
        self._max_tries = max_tries
        self._retry_pause_s = retry_pause_s
        self._members: dict[str, Member] = {}
        self._changed = asyncio.Event()
        self._waits_for_room = False

    def join(self, name: str, policy: Policy, share: float = 1.0) -> None:
        """Add an engine; one of the same name is replaced."""
        self._members[name] = Member(name, policy, share)
        self._changed.set()

    def reshare(self, name: str, share: float) -> bool:
        """Change an engine's share. Returns False if there is no such engine."""
        member = self._members.get(name)
        if member is None:
            return False
        member.share = share
        return True

    def drop(self, name: str) -> None:
        """Remove an engine: it gets no more requests. Its games move to another engine at their next turn."""
        member = self._members.pop(name, None)
        if member is not None:
            member.is_open = False
            member.changed.set()
            self._changed.set()  # it may have been the last one: from now on the wait for another one has a limit

    def wait_for_room(self, waits: bool) -> None:
        """Whether an engine that is to join waits for room, for which others have the limit."""
        self._waits_for_room = waits
        self._changed.set()

    def close(self, name: str) -> None:
        """Give the engine no new games, until `reopen`."""
        if name in self._members:
            self._members[name].is_open = False

    async def drain(self, name: str) -> None:
        """Give the engine no new games, and wait until its games have ended."""
        self.close(name)
        member = self._members.get(name)
        while member is not None and member.games and self._members.get(name) is member:
            member.changed.clear()
            await member.changed.wait()  # two may drain it at once: all that wait are woken

    def reopen(self, name: str) -> None:
        member = self._members.get(name)
        if member is not None:
            member.is_open = True
            self._changed.set()

    @property
    def games(self) -> dict[str, int]:
        """{engine: its number of games now}"""
        return {name: member.games for name, member in self._members.items()}

    @property
    def num_shared(self) -> int:
        """The engines that play for this arena."""
        return sum(member.share > 0 for member in self._members.values())

    async def seat(self, avoid: Collection[Member] = ()) -> Member:
        """The open engine with the fewest games for its share; its count rises by one. One without a share is used only
        if no engine with a share is open, and those of `avoid` only if no other is open at all.

        Raises EngineError when there was no engine for too long. While there are closed ones, it waits for these, which
        take weights or finish other games: whoever closed them has a limit for that, and drops those that die.
        """
        waited_s = 0.0
        while not (open_members := [each for each in self._members.values() if each.is_open]):
            waited_s += await self._wait_for_change(self._join_timeout_s - waited_s)
        chosen = min(
            open_members, key=lambda each: (each in avoid, not each.share, (each.games + 1) / (each.share or 1.0))
        )
        chosen.games += 1
        return chosen

    async def _wait_for_change(self, left_s: float) -> float:
        """Wait until engines join, open or go, at most `left_s` if none is there or waits for room; returns the seconds
        that count."""
        self._changed.clear()
        counts, began = not (self._members or self._waits_for_room), time.monotonic()
        try:
            await asyncio.wait_for(self._changed.wait(), left_s if counts else self._join_timeout_s)
        except TimeoutError:
            if counts:
                told = f"no engine plays {self.policy_name}; waited for {self._join_timeout_s:.0f} s"
                raise EngineError(told) from None
        return time.monotonic() - began if counts else 0.0

    def leave(self, member: Member) -> None:
        """A game of this engine has ended or moved."""
        member.games -= 1
        member.changed.set()

    async def ask(self, member: Member, request: Request, moved: Callable[[Member], None]) -> Completion:
        """The answer; `moved` is called with the new engine when the game moves.

        Raises EngineError when `max_tries` tries failed.
        """
        tried: set[Member] = set()
        for attempt in range(1, self._max_tries + 1):
            if self._members.get(member.name) is not member:
                member = await self._move(member, moved, tried)
            asked = request if attempt == 1 else replace(request, request_id=f"{request.request_id}#{attempt}")
            try:
                async with asyncio.timeout(self._turn_timeout_s):
                    (completion,) = await member.policy.generate([asked])
                if math.isfinite(sum(completion.logprobs)):
                    return completion
                error = EngineError(f"{member.name} gave a log-probability that is not finite")
            except TimeoutError:
                self.timeouts += 1
                error = EngineError(f"{member.name} did not answer within {self._turn_timeout_s:g} s")
            except EngineGoneError as gone:
                error = gone
                if self._members.get(member.name) is member:
                    self.drop(member.name)
            except EngineError as refused:
                error = refused
            log.warning("%s: try %d of %d failed: %s", request.request_id, attempt, self._max_tries, error)
            tried.add(member)
            if attempt < self._max_tries:
                member = await self._move(member, moved, tried)
                if member in tried:  # there is no other: give it time, or the tries are over within milliseconds
                    await asyncio.sleep(self._retry_pause_s * 2 ** (attempt - 1))
        raise error

    async def score(self, member: Member, sequences: Pairs, adapter: str | None = None) -> list[Score]:
        """An engine's scores of given tokens (see Policy). Raises EngineError without a retry on another engine."""
        try:
            async with asyncio.timeout(self._turn_timeout_s):
                return await member.policy.score(sequences, adapter=adapter)
        except TimeoutError:
            self.timeouts += 1
            raise EngineError(f"{member.name} did not score within {self._turn_timeout_s:g} s") from None

    async def _move(self, member: Member, moved: Callable[[Member], None], avoid: Collection[Member]) -> Member:
        self.leave(member)
        try:
            new = await self.seat(avoid)
        except BaseException:
            member.games += 1  # the game still counts here until the caller's `leave`
            raise
        moved(new)
        return new

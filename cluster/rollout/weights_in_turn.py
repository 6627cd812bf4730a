"""Several players on one engine, which takes the weights of one after another's.

    turns = WeightsInTurn(play)                  play(folder, version): from now on the engine plays these weights
    await turns.hold({None: ("models/spag-2", 3), "base": ("/models/tiny", 0)})
    async with turns.of("base") as adapter:      from here on the engine plays the base model
        await policy.generate([...])             of requests that name `base`
    turns.came(4)                                the engine got weights in another way: it holds no players any more

In a match all games ask for the attacker's turn, then for the defender's. So the engine changes weights when the
requests of the current player are answered and another player's wait: about as often as a game has turns, whatever the
number of games. All of it happens in the event loop of the engine's actor; only a change of weights takes time.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable

from cluster.handles import SavedWeights
from spag_ray.errors import EngineError

_NOBODY = "nobody: a change of weights is under way, or has failed"


class WeightsInTurn:
    """The players of one engine; at first none, and requests then only name adapters. `play`: None where none come."""

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

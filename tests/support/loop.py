"""An event loop for tests that are no coroutines themselves, and games of one kind in it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any

from actors.arena import Player, Rules, TaskSource, play_all, play_game
from spag_ray.episodes.episode import Episode


class Loop:
    """One event loop for the whole session, because an engine belongs to the loop it was made in. It has a thread of
    its own, because a browser's loop runs in the main thread from the first test of a page to the session's end."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result()

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def collect(episodes: AsyncIterator[Any]) -> list[Any]:
    return [episode async for episode in episodes]


def play_games(
    source: TaskSource, players: Mapping[str, Player], rules: Rules, games_in_flight: int, max_tries: int = 2
) -> AsyncIterator[Episode]:
    """`play_all` where every game has the same players and rules."""
    return play_all(source, lambda task: play_game(task, players, rules), games_in_flight, max_tries)

"""An event loop for tests that are no coroutines themselves, and games of one kind in it."""

import asyncio
from collections.abc import AsyncIterator, Coroutine, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from actors.arena import Player, Rules, TaskSource, play_all, play_game
from spag_ray.episodes.episode import Episode


class Loop:
    """One event loop for the whole session, because an engine belongs to the loop it was made in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = ThreadPoolExecutor(1)  # one for all calls: a model's process ends with its thread

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        """In this thread; in another one while a browser's loop runs in this, from the first test of a page on."""
        if asyncio._get_running_loop() is None:
            return self._loop.run_until_complete(coroutine)
        return self._thread.submit(self._loop.run_until_complete, coroutine).result()

    def close(self) -> None:
        self._thread.shutdown()
        self._loop.close()


async def collect(episodes: AsyncIterator[Any]) -> list[Any]:
    return [episode async for episode in episodes]


def play_games(
    source: TaskSource, players: Mapping[str, Player], rules: Rules, games_in_flight: int, max_tries: int = 2
) -> AsyncIterator[Episode]:
    """`play_all` where every game has the same players and rules."""
    return play_all(source, lambda task: play_game(task, players, rules), games_in_flight, max_tries)

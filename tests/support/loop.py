"""An event loop for tests that are no coroutines themselves."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Coroutine
from typing import Any


class Loop:
    """One event loop for the whole session, because an engine belongs to the loop it was made in."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()

    def run(self, coroutine: Coroutine[Any, Any, Any]) -> Any:
        return self._loop.run_until_complete(coroutine)

    def close(self) -> None:
        self._loop.close()


async def collect(episodes: AsyncIterator[Any]) -> list[Any]:
    return [episode async for episode in episodes]

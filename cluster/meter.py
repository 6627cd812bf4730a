"""Looks at the buffer every few seconds while a run goes on, and writes down what it says."""

from __future__ import annotations

import time
from typing import Any

from cluster.counts import BufferSample
from cluster.metrics import Metrics
from cluster.runtime import get
from cluster.stream import StreamCounts

EVERY_S = 5.0


class BufferMeter:
    """Writes lines `games` (per phase, when there are new ones; sums since the run began) and `buffer`. `max_lag` is a
    stream's."""

    def __init__(self, buffer: Any, metrics: Metrics, max_lag: int) -> None:
        self._buffer = buffer
        self._metrics = metrics
        self._max_lag = max_lag
        self._looked_at = float("-inf")
        self._games: dict[str, int] = {}

    def look(self, now: bool = False) -> None:
        """Does nothing when it has looked just before, unless it has to be `now`."""
        if not now and time.monotonic() - self._looked_at < EVERY_S:
            return
        sample: BufferSample = get(self._buffer.sample.remote())
        self._looked_at = time.monotonic()
        for phase, count in sample.played.items():
            if self._games.get(phase) != count.num_games:
                self._games[phase] = count.num_games
                self._metrics.record(
                    "games", phase=phase, turns=count.num_turns, tokens=count.num_tokens, **count.endings
                )
        self._metrics.record(
            "buffer", waiting=sample.waiting, oldest_s=round(sample.oldest_s, 1), **self._of_stream(sample.stream)
        )

    def _of_stream(self, counts: StreamCounts | None) -> dict[str, int]:
        if counts is None:
            return {}
        return {
            "permits_free": counts.permits_free,
            "begun": counts.begun,
            "lost": counts.lost,
            "repeated": counts.repeated,
            "evicted": counts.evicted,
            **{f"lag_{lag}": counts.lag[lag] for lag in range(self._max_lag + 1)},
        }

"""Samples the buffer every few seconds during a run, and records the samples."""

from __future__ import annotations

import time
from dataclasses import replace

from cluster.buffer.buffer_actor import Buffer
from cluster.tracking.recorder import Recorder
from spag_ray.results.lines import BufferLine, GamesLine

EVERY_S = 5.0


class BufferMetrics:
    """Writes lines `games` (per phase and game, when there are new ones; sums since the run started) and `buffer`.
    `max_lag` is a stream's."""

    def __init__(self, buffer: Buffer, recorder: Recorder, max_lag: int) -> None:
        self._buffer = buffer
        self._recorder = recorder
        self._max_lag = max_lag
        self._looked_at = float("-inf")
        self._games: dict[tuple[str, str], int] = {}

    def sample(self, now: bool = False) -> None:
        """Record a sample. Does nothing if the last one is less than EVERY_S old, unless `now`."""
        if not now and time.monotonic() - self._looked_at < EVERY_S:
            return
        sample = self._buffer.get(self._buffer.handle.sample.remote())
        self._looked_at = time.monotonic()
        for (phase, game), count in sample.played.items():
            if self._games.get((phase, game)) != count.num_games:
                self._games[phase, game] = count.num_games
                ends = {str(end): num_games for end, num_games in count.ends.items()}
                self._recorder.record(GamesLine(phase, game, count.num_turns, count.num_tokens, ends))
        line = BufferLine(sample.waiting, round(sample.oldest_s, 1))
        if (stream := sample.stream) is not None:
            line = replace(
                line,
                permits_free=stream.permits_free,
                begun=stream.begun,
                lost=stream.lost,
                repeated=stream.repeated,
                evicted=stream.evicted,
                lags={lag: stream.lag[lag] for lag in range(self._max_lag + 1)},
            )
        self._recorder.record(line)

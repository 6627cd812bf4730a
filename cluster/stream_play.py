"""Play that goes on beside the learner, as the loop (training.py) sees it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import ray

from cluster.buffer import StageCount
from cluster.runtime import get
from cluster.stream import STAGE, StreamCounts
from spag_ray.episode import Episode
from spag_ray.wire import decode

if TYPE_CHECKING:
    from cluster.run import Run


class Stream:
    """What the learner sees of play that goes on beside it."""

    def __init__(self, run: Run, buffer: Any, plays: list[ray.ObjectRef]) -> None:
        self._run = run
        self._buffer = buffer
        self._plays = plays
        self._began = time.perf_counter()

    def next_batch(self, what: str) -> list[Episode]:
        """The episodes that the next version learns from. Raises what ended an arena."""
        waited = time.perf_counter()
        while (records := get(self._buffer.batch.remote(0.5))) is None:
            self._run.show_play(what, 0, get(self._buffer.count.remote(STAGE)))
            if ended := ray.wait(self._plays, timeout=0)[0]:
                get(ended)
        counts: StreamCounts = get(self._buffer.stream_counts.remote())
        total: StageCount = get(self._buffer.count.remote(STAGE))
        seconds = time.perf_counter() - self._began
        self._run.metrics.record(
            "stream",
            version=self._run.version,
            waited_s=round(time.perf_counter() - waited, 3),
            games=total.num_games,
            tokens_per_s=round(total.num_tokens / seconds, 1),
            games_per_s=round(total.num_games / seconds, 3),
            begun=counts.begun,
            waiting=counts.waiting,
            evicted=counts.evicted,
            lost=counts.lost,
            repeated=counts.repeated,
            permits_free=counts.permits_free,
            **{f"lag_{lag}": number for lag, number in sorted(counts.lag.items())},
        )
        return [decode(data) for data in records]

    def learned(self) -> None:
        """The batch has been learned and the new weights are published."""
        get(self._buffer.advance.remote({policy.name: policy.version for policy in self._run.policies}))

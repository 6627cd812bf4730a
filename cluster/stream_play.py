"""Play that goes on beside the learner, as the loop (training.py) sees it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import ray

from cluster.arena_actor import Seat
from cluster.runtime import get
from cluster.stream import STAGE, StreamCounts
from spag_ray.episode import Episode
from spag_ray.game_count import GameCount
from spag_ray.wire import decode

if TYPE_CHECKING:
    from cluster.run import Run


class Stream:
    """What the learner sees of play that goes on beside it."""

    def __init__(self, run: Run, seats: Mapping[str, Seat]) -> None:
        self._run = run
        self._buffer = run.buffer
        self._seats = seats
        self._began = time.perf_counter()
        self._plays: dict[ray.ObjectRef, int] = {}
        for index in range(len(run.arenas.handles)):
            self._play(index)

    def next_batch(self, what: str) -> list[Episode]:
        """The episodes that the next version learns from. Raises what ended an arena, and
        StopRequestedError."""
        self._run.check_stop()
        waited = time.perf_counter()
        while (records := get(self._buffer.batch.remote(0.5))) is None:
            self._run.show_play(what, 0, get(self._buffer.count.remote(STAGE)))
            self._run.look_around()
            self._look_after_arenas()
        counts: StreamCounts = get(self._buffer.stream_counts.remote())
        total: GameCount = get(self._buffer.count.remote(STAGE))
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

    def learned(self) -> dict[str, Any]:
        """The batch has been learned and the new weights are published; returns the buffer's cursor."""
        return get(self._buffer.advance.remote({policy.name: policy.version for policy in self._run.policies}))

    def stop(self) -> None:
        """Arenas leave the games that are under way; one that is gone has left them."""
        for play, index in self._plays.items():
            with contextlib.suppress(ray.exceptions.RayActorError):
                get(self._run.arenas.handles[index].stop.remote())
                get(play)

    def _play(self, index: int) -> None:
        games_in_flight = self._run.config.self_play.games_in_flight
        play = self._run.arenas.handles[index].play_stream.remote(self._seats, games_in_flight)
        self._plays[play] = index

    def _look_after_arenas(self) -> None:
        """One that is gone leaves its games to others and is made again; what else ended one is raised."""
        for ended in ray.wait(list(self._plays), num_returns=len(self._plays), timeout=0)[0]:
            index = self._plays.pop(ended)
            try:
                get(ended)
            except ray.exceptions.RayActorError as error:
                name = self._run.arenas.name(index)
                self._run.restarts.count(name, error)
                get(self._buffer.give_up.remote(name))
                self._run.arenas.restart(index)
                self._play(index)

"""Play that runs in parallel with the learner, as the loop (training.py) uses it."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator, Mapping
from typing import Any

import ray

from actors.league import Opponents
from cluster.buffer.buffer_actor import StreamSpec
from cluster.buffer.stream import STAGE, StreamCounts
from cluster.handles import Ref
from cluster.runtime.ray_session import ACTOR_LOST, get
from cluster.schedules.playground import Playground
from cluster.types import Seat
from spag_ray.episodes.episode import Episode, GameCount
from spag_ray.episodes.wire import decode
from spag_ray.game.words import WordStream
from spag_ray.results.lines import StreamLine
from spag_ray.stages import Stage


@contextlib.contextmanager
def streaming(
    ground: Playground,
    words: WordStream,
    seats: Mapping[str, Seat],
    opponents: Opponents,
    cursor: Mapping[str, Any] | None = None,
) -> Iterator[Stream]:
    """Arenas play while the block trains, as far as permits allow. `cursor`: that of a stream to resume."""
    config, versions = ground.config, ground.versions()
    spec = StreamSpec(words, config.stream, config.seed, opponents, versions)
    resumed = None if cursor is None else {**cursor, "versions": versions}
    ground.buffer.get(ground.buffer.handle.open_stream.remote(spec, resumed))
    ground.buffer_metrics.sample(now=True)
    stream = Stream(ground, seats, opponents)
    try:
        yield stream
    finally:
        # A buffer that is dead for good or does not answer has ended the block already; arenas are stopped anyway.
        with contextlib.suppress(ray.exceptions.RayError):
            ground.buffer.get(ground.buffer.handle.close_stream.remote())
        stream.stop()
        ground.elastic.learner_waits = None  # nobody learns beside what is played from now on


class Stream:
    """The learner's side of play that runs in parallel with it."""

    def __init__(self, ground: Playground, seats: Mapping[str, Seat], opponents: Opponents) -> None:
        self._opponents = opponents
        self._ground = ground
        self._buffer = ground.buffer
        self._seats = seats
        self._began = self._last_batch = time.perf_counter()
        # A resumed stream has counts.
        self._lags, self._count_before = self._counts().lag.copy(), self._count()
        self._plays: dict[Ref[int], tuple[int, str]] = {}  # (index, name) of the arena
        for index in range(len(ground.arenas.handles)):
            self._play(index)

    def next_batch(self, stage: Stage, what: str) -> tuple[list[Episode], set[int]]:
        """The episodes that the next version, of the round `stage`, trains on, and the numbers of those that an earlier
        version was trained on too; `what` is shown. Raises the error of an arena that failed, and
        StopRequestedError."""
        self._ground.poll_health()
        waited = time.perf_counter()
        with self._ground.split.phase("generate"):
            while (records := self._buffer.get(self._buffer.handle.batch.remote(0.5))) is None:
                self._ground.status.show_games(what, 0, self._count())
                self._ground.poll_health()
                self._look_after_arenas()
        now = time.perf_counter()
        waited_s, since_s, self._last_batch = now - waited, now - self._last_batch, now
        self._ground.elastic.learner_waits = waited_s / since_s
        counts = self._counts()
        total, seconds = self._count(), now - self._began
        num_games = total.num_games - self._count_before.num_games
        num_tokens = total.num_tokens - self._count_before.num_tokens
        new, self._lags = counts.lag - self._lags, counts.lag.copy()
        episodes = [decode(data) for data in records]
        self._ground.recorder.record(
            StreamLine(
                version=self._ground.version,
                waited_s=round(waited_s, 3),
                games=total.num_games,
                tokens_per_s=round(num_tokens / seconds, 1),
                games_per_s=round(num_games / seconds, 3),
                begun=counts.begun,
                waiting=counts.waiting,
                evicted=counts.evicted,
                lost=counts.lost,
                repeated=counts.repeated,
                permits_free=counts.permits_free,
                lags=dict(sorted(counts.lag.items())),
                tokens_per_s_per_gpu=self._ground.tokens_per_s_per_gpu(num_tokens, seconds),
                staleness_mean=round(sum(lag * n for lag, n in new.items()) / new.total(), 3) if new else None,
                staleness_max=max(new, default=None),
                figures=self._ground.figures(stage, episodes, self._seats),
            )
        )
        return episodes, self._buffer.get(self._buffer.handle.repeated.remote())

    def meet(self, opponents: Opponents) -> None:
        """Games that begin from now on are against these."""
        if opponents != self._opponents:
            self._opponents = opponents
            self._buffer.get(self._buffer.handle.meet.remote(opponents))

    def learned(self) -> dict[str, Any]:
        """Call when the batch is trained on and the new weights are published; returns the buffer's cursor."""
        return self._buffer.get(self._buffer.handle.advance.remote(self._ground.versions()))

    def stop(self) -> None:
        """Make arenas abandon the games under way."""
        self._ground.arenas.stop(STAGE, {play: index for play, (index, _) in self._plays.items()})

    def _counts(self) -> StreamCounts:
        return self._buffer.get(self._buffer.handle.stream_counts.remote())

    def _count(self) -> GameCount:
        """Of all games of the stream, those before a resume too."""
        return self._buffer.get(self._buffer.handle.count.remote(STAGE))

    def _play(self, index: int) -> None:
        games_in_flight = self._ground.config.self_play.games_in_flight
        play = self._ground.arenas.handles[index].play_stream.remote(self._seats, games_in_flight)
        self._plays[play] = index, self._ground.arenas.name(index)

    def _look_after_arenas(self) -> None:
        """Replace dead arenas and give their games to others; any other error of an arena is raised."""
        for ended in ray.wait(list(self._plays), num_returns=len(self._plays), timeout=0)[0]:
            index, name = self._plays.pop(ended)
            try:
                get(ended)
            except ACTOR_LOST as error:
                self._buffer.get(self._buffer.handle.give_up.remote(name))
                self._ground.arenas.replace(index, name, error)
                self._play(index)

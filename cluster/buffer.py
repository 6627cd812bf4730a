"""The replay buffer: judged episodes in, whole stages or a stream's batches out.

`ReplayBuffer` is a plain class; `BufferActor` hosts it, and lets arenas and learner wait for permits and episodes.
An episode is written to its stage's log before `add` returns, so what was acknowledged is on disk.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.arena import GameTask
from actors.league import Opponents
from cluster.stream import STAGE, GameStream, StreamCounts
from spag_ray.config import StreamConfig
from spag_ray.episode import Episode
from spag_ray.errors import RunFolderError
from spag_ray.game import Outcome
from spag_ray.wire import EpisodeLog, decode
from spag_ray.words import WordStream


@dataclass
class StageCount:
    """What a stage has played so far: outcomes, turns and sampled tokens."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    num_turns: int = 0
    num_tokens: int = 0

    @property
    def num_games(self) -> int:
        return self.outcomes.total()


class ReplayBuffer:
    """Episodes by stage, as msgpack, in memory until they are taken and on disk for good. A stage is a list of games
    known beforehand, taken whole; `stream`, if there is one, is the stage that goes on and on."""

    def __init__(self, folder: str) -> None:
        self.stream: GameStream | None = None
        self._folder = Path(folder)
        self._logs: dict[str, EpisodeLog] = {}
        self._waiting: dict[str, dict[int, bytes]] = {}
        self._counts: dict[str, StageCount] = {}

    def add(self, records: Iterable[bytes]) -> int:
        """`keep`, then `write`; returns how many were new."""
        new = self.keep(records)
        self.write(new)
        return sum(map(len, new.values()))

    def keep(self, records: Iterable[bytes]) -> dict[str, list[bytes]]:
        """Keep encoded episodes; one that was kept before (asked again after a lost reply) is not kept twice. Returns
        those that were new, by stage."""
        new: dict[str, list[bytes]] = {}
        for data in records:
            episode = decode(data)
            if self._keep(episode, data):
                new.setdefault(episode.stage, []).append(data)
                count = self._counts.setdefault(episode.stage, StageCount())
                count.outcomes[episode.verdict.outcome] += 1
                count.num_turns += len(episode.turns)
                count.num_tokens += episode.num_tokens
        return new

    def write(self, records: Mapping[str, Sequence[bytes]]) -> None:
        """To the logs of their stages; on the disk when this returns. Raises RunFolderError when it takes no more."""
        for stage, kept in records.items():
            try:
                self._log(stage).append(*kept)
            except OSError as error:
                raise RunFolderError(f"{self._folder}: an episode could not be written: {error.strerror}") from error

    def take(self, stage: str) -> list[bytes]:
        """All episodes of a stage, in the order of their numbers; they are then no longer in memory."""
        waiting = self._waiting.pop(stage, {})
        return [waiting[number] for number in sorted(waiting)]

    def count(self, stage: str) -> StageCount:
        return self._counts.get(stage, StageCount())

    def _keep(self, episode: Episode, data: bytes) -> bool:
        if self.stream is not None and episode.stage == STAGE:
            return self.stream.add(episode, data)
        waiting = self._waiting.setdefault(episode.stage, {})
        if episode.number in waiting:
            return False
        waiting[episode.number] = data
        return True

    def _log(self, stage: str) -> EpisodeLog:
        if stage not in self._logs:
            self._logs[stage] = EpisodeLog(self._folder / f"{stage}.log")
        return self._logs[stage]


class BufferActor:
    """A ReplayBuffer for several callers at once. Async: a caller that waits holds up nobody."""

    def __init__(self, folder: str) -> None:
        self._buffer = ReplayBuffer(folder)
        self._changed = asyncio.Event()
        self._is_open = False
        self._writing = asyncio.Lock()

    async def add(self, records: list[bytes]) -> int:
        new = self._buffer.keep(records)
        self._tell()
        async with self._writing:  # the disk is slow, and nobody else waits for it
            await asyncio.to_thread(self._buffer.write, new)
        return sum(map(len, new.values()))

    async def take(self, stage: str) -> list[bytes]:
        return self._buffer.take(stage)

    async def count(self, stage: str) -> StageCount:
        return self._buffer.count(stage)

    async def open_stream(
        self,
        words: WordStream,
        config: StreamConfig,
        versions: Mapping[str, int],
        seed: int,
        opponents: Opponents | None = None,
    ) -> None:
        self._buffer.stream = GameStream(words, config, versions, seed, opponents or Opponents(seed))
        self._is_open = True

    async def lease(self, holder: str, count: int) -> list[GameTask]:
        """Up to `count` games of the stream; waits for a permit; none once the stream is closed."""
        while self._is_open:
            if tasks := self._stream.lease(holder, count):
                return tasks
            await self._change()
        return []

    async def batch(self, timeout_s: float) -> list[bytes] | None:
        """The episodes that the next version learns from; None if there are too few still after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                while (taken := self._stream.take()) is None:
                    self._tell()  # what was evicted has made room for others
                    await self._change()
                return taken
        except TimeoutError:
            return None

    async def advance(self, versions: Mapping[str, int]) -> None:
        self._stream.advance(versions)
        self._tell()

    async def give_up(self, holder: str) -> int:
        """An arena is gone: its games are others'."""
        lost = self._stream.give_up(holder)
        self._tell()
        return lost

    async def stream_counts(self) -> StreamCounts:
        return self._stream.counts()

    async def close_stream(self) -> None:
        """Arenas get no more games; those under way are played to their end."""
        self._is_open = False
        self._tell()

    @property
    def _stream(self) -> GameStream:
        assert self._buffer.stream is not None, "no stream was opened"
        return self._buffer.stream

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        await self._changed.wait()

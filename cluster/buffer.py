"""The replay buffer: judged episodes in, whole stages or a stream's batches out.

`ReplayBuffer` is a plain class; `BufferActor` hosts it, and lets arenas and learner wait for permits and episodes.
An episode is written to its stage's log before `add` returns, so what was acknowledged is on disk; and what the buffer
holds is read from there again when it is made anew: after a crash of its own, or of the whole run.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.arena import GameTask
from actors.league import Opponents
from cluster.counts import BufferSample
from cluster.metric_registry import phase_of
from cluster.stream import STAGE, GameStream, StreamCounts
from spag_ray.config import StreamConfig
from spag_ray.episode import Episode
from spag_ray.episode_log import EpisodeLog, LogFaults, read_records, write_atomically
from spag_ray.errors import InputError, RunFolderError
from spag_ray.game_count import GameCount
from spag_ray.wire import decode
from spag_ray.words import WordStream

STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@-]*")


@dataclass
class BufferHealth:
    """`pid` changes when Ray has started the buffer again; `damage`: {stage: what reading its log has found amiss}."""

    pid: int
    damage: dict[str, str]


class ReplayBuffer:
    """Episodes by stage, as msgpack, in memory until they are taken and on disk for good. A stage is a list of games
    known beforehand, taken whole; `stream`, if there is one, is the stage that goes on and on. What the log of a stage
    holds already counts as played."""

    def __init__(self, folder: str) -> None:
        self.stream: GameStream | None = None
        self._folder = Path(folder)
        self._logs: dict[str, EpisodeLog] = {}
        self._waiting: dict[str, dict[int, bytes]] = {}
        self._counts: dict[str, GameCount] = {}
        self._came: dict[str, GameCount] = {}
        self._waiting_since: dict[str, float] = {}
        self.damage: dict[str, str] = {}

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
                self._count(episode)
                self._came.setdefault(phase_of(episode.stage), GameCount()).add(episode)
        return new

    def write(self, records: Mapping[str, Sequence[bytes]]) -> None:
        """To the logs of their stages; on the disk when this returns. Raises RunFolderError when it takes no more."""
        for stage, kept in records.items():
            try:
                self._log(stage).append(*kept)
            except OSError as error:
                raise RunFolderError(f"{self._folder}: an episode could not be written: {error.strerror}") from error

    def played(self, stage: str) -> dict[int, str]:
        """{number: word} of the games of a stage that are there, those of its log too."""
        return {number: decode(data).target_word for number, data in self._stage(stage).items()}

    def take(self, stage: str) -> list[bytes]:
        """All episodes of a stage, in the order of their numbers; they are then no longer in memory."""
        waiting = self._stage(stage)
        del self._waiting[stage]
        self._waiting_since.pop(stage, None)
        return [waiting[number] for number in sorted(waiting)]

    def count(self, stage: str) -> GameCount:
        return self._counts.get(stage, GameCount())

    def sample(self) -> BufferSample:
        waits = [time.monotonic() - since for since in self._waiting_since.values()]
        waiting = sum(map(len, self._waiting.values()))
        counts = None
        if self.stream is not None:
            counts = self.stream.counts()
            waiting += counts.waiting
            waits.append(self.stream.oldest_s)
        return BufferSample(self._came, waiting, max(waits, default=0.0), counts)

    def open_stream(self, stream: GameStream, cursor: Mapping[str, Any] | None) -> None:
        """`stream` is the one from here on; what the log holds of it is taken in."""
        self.stream = stream
        self._counts.pop(STAGE, None)
        stream.restore(cursor, self._recorded(STAGE))

    def reread(self) -> None:
        """Logs were set aside: what is known of stages is what their logs say now."""
        for log in self._logs.values():
            log.close()
        self._logs, self._waiting, self._counts, self._waiting_since = {}, {}, {}, {}

    def _recorded(self, stage: str) -> Iterator[tuple[Episode, bytes]]:
        """What the log of a stage holds, counted; what is damaged there is noted."""
        faults = LogFaults()
        for data in read_records(self._path(stage), faults):
            episode = decode(data)
            self._count(episode)
            yield episode, data
        if faults:
            self.damage[stage] = str(faults)

    def _count(self, episode: Episode) -> None:
        self._counts.setdefault(episode.stage, GameCount()).add(episode)

    def _keep(self, episode: Episode, data: bytes) -> bool:
        if self.stream is not None and episode.stage == STAGE:
            return self.stream.add(episode, data)
        waiting = self._stage(episode.stage)
        if episode.number in waiting:
            return False
        waiting[episode.number] = data
        self._waiting_since.setdefault(episode.stage, time.monotonic())
        return True

    def _stage(self, stage: str) -> dict[int, bytes]:
        if stage not in self._waiting:
            self._counts.pop(stage, None)
            self._waiting[stage] = {episode.number: data for episode, data in self._recorded(stage)}
        return self._waiting[stage]

    def _log(self, stage: str) -> EpisodeLog:
        if stage not in self._logs:
            self._logs[stage] = EpisodeLog(self._path(stage))
        return self._logs[stage]

    def _path(self, stage: str) -> Path:
        if not STAGE_NAME.fullmatch(stage):
            raise InputError(
                f"an episode of stage {stage[:40]!r}: a stage is a file name of letters, digits, -, _ and ."
            )
        return self._folder / f"{stage}.log"


@dataclass(frozen=True)
class StreamSpec:
    """What makes a stream, apart from what has become of it: see GameStream."""

    words: WordStream
    config: StreamConfig
    seed: int
    opponents: Opponents
    versions: Mapping[str, int]


class BufferActor:
    """A ReplayBuffer for several callers at once. Async: a caller that waits holds up nobody.

    Ray may start it again after a crash: it then opens the stream that was open, from its log and its cursor.
    """

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)
        self._buffer = ReplayBuffer(folder)
        self._changed = asyncio.Event()
        self._is_open = False
        self._writing = asyncio.Lock()
        if (spec := self._spec_path).exists():
            self._begin(_read_spec(spec), json.loads(self._cursor_path.read_text(encoding="utf-8")))

    async def add(self, records: list[bytes]) -> int:
        new = self._buffer.keep(records)
        self._tell()
        async with self._writing:  # the disk is slow, and nobody else waits for it
            await asyncio.to_thread(self._buffer.write, new)
        return sum(map(len, new.values()))

    async def take(self, stage: str) -> list[bytes]:
        return self._buffer.take(stage)

    async def played(self, stage: str) -> dict[int, str]:
        return self._buffer.played(stage)

    async def count(self, stage: str) -> GameCount:
        return self._buffer.count(stage)

    async def sample(self) -> BufferSample:
        return self._buffer.sample()

    async def health(self) -> BufferHealth:
        return BufferHealth(os.getpid(), dict(self._buffer.damage))

    async def reread(self) -> None:
        async with self._writing:
            self._buffer.reread()

    async def open_stream(self, spec: StreamSpec, cursor: Mapping[str, Any] | None = None) -> None:
        """Begin a stream, or go on with it where `cursor` says."""
        async with self._writing:
            self._begin(spec, cursor)
            self._save_cursor()
            write_atomically(self._spec_path, _spec_as_json(spec))
        self._tell()

    def _begin(self, spec: StreamSpec, cursor: Mapping[str, Any] | None) -> None:
        stream = GameStream(spec.words, spec.config, spec.versions, spec.seed, spec.opponents)
        self._buffer.open_stream(stream, cursor)
        self._is_open = True

    def _save_cursor(self) -> dict[str, Any]:
        """Whoever calls it holds `_writing`."""
        cursor = self._stream.cursor()
        write_atomically(self._cursor_path, json.dumps(cursor))
        return cursor

    @property
    def _spec_path(self) -> Path:
        return self._folder / "stream.json"

    @property
    def _cursor_path(self) -> Path:
        return self._folder / "stream.cursor.json"

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
        except TimeoutError:
            return None
        async with self._writing:  # the cursor names episodes: they are in the log by then
            self._save_cursor()
        return taken

    async def advance(self, versions: Mapping[str, int]) -> dict[str, Any]:
        """The batch is learned and the new weights are published; returns the cursor, for a checkpoint."""
        self._stream.advance(versions)
        self._tell()
        async with self._writing:
            return self._save_cursor()

    async def give_up(self, holder: str) -> int:
        """An arena is gone: its games are others'."""
        lost = self._stream.give_up(holder)
        self._tell()
        return lost

    async def stream_counts(self) -> StreamCounts:
        return self._stream.counts()

    async def close_stream(self) -> None:
        """Arenas get no more games."""
        self._is_open = False
        self._spec_path.unlink(missing_ok=True)
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


def _spec_as_json(spec: StreamSpec) -> str:
    return json.dumps(
        {
            "words": spec.words.state(),
            "config": spec.config.model_dump(),
            "seed": spec.seed,
            "opponents": {"seed": spec.opponents.seed, "shares": spec.opponents.shares},
            "versions": dict(spec.versions),
        }
    )


def _read_spec(path: Path) -> StreamSpec:
    found = json.loads(path.read_text(encoding="utf-8"))
    shares = tuple((name, share) for name, share in found["opponents"]["shares"])
    return StreamSpec(
        WordStream.from_state(found["words"]),
        StreamConfig(**found["config"]),
        found["seed"],
        Opponents(found["opponents"]["seed"], shares),
        found["versions"],
    )

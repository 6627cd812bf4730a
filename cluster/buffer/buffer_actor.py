"""The replay buffer: judged episodes in, whole stages or a stream's batches out.

`ReplayBuffer` is a plain class; `BufferActor` hosts it, and lets arenas and learner wait for permits and episodes.
An episode is written to its stage's log before `add` returns, so every acknowledged episode is on disk. After a crash
of the buffer or of the whole run, the new buffer reads its content from these logs.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, TypeAlias

import ray

from actors.arena import GameTask
from actors.league import Opponents
from cluster.buffer.replay_buffer import BufferSample, ReplayBuffer
from cluster.buffer.stream import STAGE, GameStream, Leases, StreamCounts
from cluster.handles import Actor, Handle, R, Ref, actor_method
from cluster.runtime.ray_session import NoAnswerError, collect_seldom, get
from spag_ray.config.parts import StreamConfig
from spag_ray.episodes.episode import GameCount
from spag_ray.episodes.wire import read_head
from spag_ray.errors import RunFolderError
from spag_ray.game.words import WordStream
from spag_ray.host.folder_lease import FolderLease
from spag_ray.host.whole_files import write_atomically
from spag_ray.results.former_records import named_words

# A record takes 0.04 to 0.05 ms to read here (2 cores of an AMD EPYC), and has 0.8 KB or more. This is 20 times that.
READ_S_PER_MIB = 1.0
MAX_FINISHED_LINES = 1000  # of the lease log, until it is rewritten


@dataclass
class BufferHealth:
    """`pid` changes when Ray has restarted the buffer; `is_restarted`: it has, at least once. `damage`: {stage: the
    damage found in its log}."""

    pid: int
    is_restarted: bool
    damage: dict[str, str]


@dataclass(frozen=True)
class StreamSpec:
    """The fixed settings of a stream, without its progress: see GameStream."""

    words: WordStream
    config: StreamConfig
    seed: int
    opponents: Opponents
    versions: Mapping[str, int]


class BufferActor(Actor):
    """A ReplayBuffer for several callers at once. Async: a caller that waits does not block others.

    When Ray restarts it after a crash, it reopens the open stream from its log, its cursor and its leases. Logs are
    read in a thread: heartbeats are answered meanwhile, so that a hang is found soon; every other call waits.
    """

    def __init__(self, folder: str, lease: FolderLease | None = None) -> None:
        collect_seldom()
        self._folder = Path(folder)
        self._spec_path, self._cursor_path = self._folder / "stream.json", self._folder / "stream.cursor.json"
        self._buffer = ReplayBuffer(folder, lease)
        self._changed = asyncio.Event()
        self._is_open = False
        self._spec: StreamSpec | None = None
        self._writing = asyncio.Lock()
        self._unwritten: dict[str, dict[int, bytes]] = {}
        self._leases = LeaseLog(self._folder / "stream.leases.jsonl")
        self._reading = asyncio.Lock()  # held while a thread reads a log: only heartbeats are answered then
        self._is_restored = False

    @actor_method
    async def heartbeat(self) -> None:
        """Answers while this process is alive and its event loop runs."""

    @actor_method
    async def live(self) -> None:
        """Never returns; the call fails when this process ends."""
        await asyncio.Event().wait()

    @actor_method
    async def add(self, records: list[bytes]) -> int:
        """Returns how many were new; they are on disk then. What arrives during a write is written together."""
        found = [(read_head(data), data) for data in records]
        await self._ready(*{head.stage for head, _ in found})
        new = self._buffer.keep(found)
        self._tell()
        for stage, kept in new.items():
            self._unwritten.setdefault(stage, {}).update(kept)
        async with self._writing:  # the disk is slow: other calls need not wait for it
            await self._write()
        return sum(map(len, new.values()))

    async def _write(self) -> None:
        """Everything that is unwritten now; the caller holds `_writing`."""
        unwritten, self._unwritten = self._unwritten, {}
        try:
            for stage in list(unwritten):
                places = await asyncio.to_thread(self._buffer.write, {stage: unwritten[stage]})
                self._buffer.written(places)
                written = unwritten.pop(stage)
                if stage == STAGE:
                    self._leases.finished(written)
        finally:
            for stage, kept in unwritten.items():  # after an error: the next call tries again
                self._unwritten[stage] = kept | self._unwritten.get(stage, {})

    @actor_method
    async def take(self, stage: str) -> list[bytes]:
        async with self._writing:  # a thread may write to the stage's log, which is closed now
            await self._ready(stage)
            return self._buffer.take(stage)

    @actor_method
    async def played(self, stage: str) -> dict[int, str]:
        await self._ready(stage)
        return self._buffer.played(stage)

    @actor_method
    async def count(self, stage: str) -> GameCount:
        await self._ready()
        return self._buffer.count(stage)

    @actor_method
    async def sample(self) -> BufferSample:
        await self._ready()
        return self._buffer.sample()

    @actor_method
    async def health(self) -> BufferHealth:
        await self._ready()
        is_restarted = ray.get_runtime_context().was_current_actor_reconstructed
        return BufferHealth(os.getpid(), is_restarted, dict(self._buffer.damage))

    @actor_method
    async def reread(self) -> None:
        await self._ready()
        async with self._writing, self._reading:
            self._buffer.reread()

    @actor_method
    async def open_stream(self, spec: StreamSpec, cursor: Mapping[str, Any] | None = None) -> None:
        """Start a stream, or resume it at `cursor`, whose `versions` are the numbers under which its weights are
        published now."""
        await self._ready()
        async with self._writing, self._reading:
            # Attempts since the checkpoint have left no numbers in its cursor, but in the one beside their games.
            last = json.loads(self._cursor_path.read_text(encoding="utf-8")) if self._cursor_path.exists() else {}
            await asyncio.to_thread(self._begin, spec, cursor, None, last.get("numbers"))
            self._save_cursor()
            write_atomically(self._spec_path, _spec_as_json(spec))
        self._tell()

    @actor_method
    async def meet(self, opponents: Opponents) -> None:
        """Games that are given out from now on are against these; also after a restart of this process."""
        await self._ready()
        assert self._spec is not None
        self._spec = replace(self._spec, opponents=opponents)
        self._stream.meet(opponents)
        self._buffer.check_lease()
        write_atomically(self._spec_path, _spec_as_json(self._spec))

    async def _ready(self, *stages: str) -> None:
        """Wait while a log is read. The first call after a start reopens the stream that was open; `stages` are read if
        they are not in memory. The caller may then use the buffer until it waits for something else."""
        async with self._reading:
            if not self._is_restored:
                if self._spec_path.exists():
                    cursor = json.loads(self._cursor_path.read_text(encoding="utf-8"))
                    spec = _read_spec(self._spec_path)
                    await asyncio.to_thread(self._begin, spec, cursor, self._leases.read())
                self._is_restored = True
            for stage in stages:
                if not self._buffer.has_read(stage):
                    await asyncio.to_thread(self._buffer.read, stage)

    def _begin(
        self,
        spec: StreamSpec,
        cursor: Mapping[str, Any] | None,
        leases: Leases | None = None,
        numbers: Sequence[Any] | None = None,
    ) -> None:
        """Runs in a thread; the caller holds `_reading`, so nothing else uses the buffer. `numbers`: those of all
        attempts so far, in place of the cursor's (Lineage in stream.py)."""
        self._buffer.check_lease(now=True)
        self._spec = spec
        stream = GameStream(spec.words, spec.config, spec.versions, spec.seed, spec.opponents)
        if numbers is not None:
            cursor = {**(cursor or stream.cursor()), "numbers": numbers}
        self._buffer.open_stream(stream, cursor, leases)
        self._leases.begin(stream.leases())
        self._is_open = True

    def _save_cursor(self) -> dict[str, Any]:
        """The caller holds `_writing`."""
        cursor = self._stream.cursor()
        self._buffer.check_lease()
        write_atomically(self._cursor_path, json.dumps(cursor))
        return cursor

    @actor_method
    async def lease(self, holder: str, count: int, request: str = "") -> list[GameTask]:
        """Up to `count` games of the stream. Waits for a permit; returns none if the stream is closed or the arena was
        given up. `request` identifies this call, because Ray repeats it when the buffer dies."""
        await self._ready()
        while self._is_open and not self._stream.is_gone(holder):
            if tasks := self._stream.lease(holder, count, request):
                self._buffer.check_lease()
                self._leases.leased(holder, request, [task.number for task in tasks])
                return tasks
            await self._change()
        return []

    @actor_method
    async def batch(self, timeout_s: float) -> list[bytes] | None:
        """The episodes that the next version trains on; None if there are still too few after `timeout_s`."""
        await self._ready()
        try:
            async with asyncio.timeout(timeout_s):
                while (taken := self._stream.take()) is None:
                    self._tell()  # evicted episodes have freed permits
                    await self._change()
        except TimeoutError:
            return None
        async with self._writing:  # the cursor names episodes, which must be in the log first
            self._save_cursor()
        return taken

    @actor_method
    async def repeated(self) -> set[int]:
        """The numbers of those episodes of `batch` that an earlier version was trained on too."""
        await self._ready()
        return self._stream.repeated()

    @actor_method
    async def advance(self, versions: Mapping[str, int]) -> dict[str, Any]:
        """Call when the batch is trained on and the new weights are published; returns the cursor, for a checkpoint."""
        await self._ready()
        self._stream.advance(versions)
        self._tell()
        async with self._writing:
            return self._save_cursor()

    @actor_method
    async def give_up(self, holder: str) -> int:
        """Give a dead arena's games to others; returns how many."""
        await self._ready()
        lost = self._stream.give_up(holder)
        self._buffer.check_lease()
        self._leases.gone(holder)
        self._tell()
        return lost

    @actor_method
    async def stream_counts(self) -> StreamCounts:
        await self._ready()
        return self._stream.counts()

    @actor_method
    async def close_stream(self) -> None:
        """Arenas get no more games."""
        await self._ready()
        self._is_open = False
        self._tell()
        if self._buffer.has_lease():  # else the file may be another run's
            self._spec_path.unlink(missing_ok=True)

    @property
    def _stream(self) -> GameStream:
        assert self._buffer.stream is not None, "no stream was opened"
        return self._buffer.stream

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    async def _change(self) -> None:
        await self._changed.wait()
        await self._ready()  # a stream may be opened just now


BufferHandle: TypeAlias = Handle[BufferActor]


class Buffer:
    """The buffer as its Run calls it: every wait for an answer has a bound. `handle` is for arenas. `folder` has the
    logs that the buffer may have to read before it answers; the rest of the bound is `answer_within_s`, in which a
    buffer that hangs is found and restarted."""

    def __init__(self, handle: BufferHandle, folder: Path, answer_within_s: float) -> None:
        self.handle = handle
        self._folder = folder
        self._answer_within_s = answer_within_s

    def get(self, ref: Ref[R]) -> R:
        """The answer to a call of `handle`. Raises NoAnswerError when it takes longer than reading all logs would."""
        try:
            return get(ref, self._answer_within_s)
        except NoAnswerError:  # the size of the logs is looked up only now: a shared disk takes time for it
            num_mib = sum(path.stat().st_size for path in self._folder.glob("*.log")) / 2**20
            return get(ref, READ_S_PER_MIB * num_mib)


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
        WordStream.from_state(named_words(found["words"], path.parent.parent)),
        StreamConfig(**found["config"]),
        found["seed"],
        Opponents(found["opponents"]["seed"], shares),
        found["versions"],
    )


class LeaseLog:
    """Records on disk which games of the open stream are under way, so that a restarted buffer gives none of them out
    twice. `path` is a file in the folder of the stream's cursor. Writing may raise RunFolderError.

    One JSON line for each answered request and for each dead arena, written before the answer is sent. The file
    survives the buffer's process, but appended lines are not synced: after a power cut a game may be played twice, and
    counts once.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._leases = Leases()
        self._num_lines = 0

    def begin(self, leases: Leases) -> None:
        """Replace the file's content by these leases."""
        self._leases = leases
        lines: list[dict[str, object]] = [{"gone": holder} for holder in sorted(leases.gone)]
        lines += [_leased(holder, request, [number]) for number, (holder, request) in leases.out.items()]
        with _refused(self._path):
            write_atomically(self._path, _as_text(lines))
        self._num_lines = len(lines)

    def leased(self, holder: str, request: str, numbers: Sequence[int]) -> None:
        """`holder` gets these games in answer to its `request`."""
        self._leases.out |= dict.fromkeys(numbers, (holder, request))
        self._append(_leased(holder, request, numbers))

    def gone(self, holder: str) -> None:
        """An arena is dead: its games are played by others."""
        self._leases.give_up(holder)
        self._append({"gone": holder})

    def finished(self, numbers: Iterable[int]) -> None:
        """These games are in the episode log: the file need not keep them."""
        for number in numbers:
            self._leases.out.pop(number, None)
        if self._num_lines > MAX_FINISHED_LINES + len(self._leases.out) + len(self._leases.gone):
            self.begin(self._leases)

    def read(self) -> Leases:
        """The games that were under way. Torn lines are ignored: the request of one whose write failed was
        never answered, and a game that a power cut took out of the file is played twice."""
        leases = Leases()
        if not self._path.exists():  # a stream of an older version of this program
            return leases
        for line in self._path.read_text(encoding="utf-8", errors="replace").split("\n")[:-1]:
            try:
                found = json.loads(line)
            except ValueError:
                continue
            if "gone" in found:
                leases.give_up(found["gone"])
            else:
                leases.out |= dict.fromkeys(found["numbers"], (found["holder"], found["request"]))
        return leases

    def _append(self, line: dict[str, object]) -> None:
        with _refused(self._path), self._path.open("a+b") as file:
            file.write(_line_end_before(file) + _as_text([line]).encode())
        self._num_lines += 1


def _line_end_before(file: IO[bytes]) -> bytes:
    """A line end where the last line is torn, because a write has failed."""
    if file.seek(0, os.SEEK_END) == 0:
        return b""
    file.seek(-1, os.SEEK_END)
    return b"" if file.read(1) == b"\n" else b"\n"


@contextlib.contextmanager
def _refused(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise RunFolderError(f"{path}: a lease could not be written: {error.strerror}") from error


def _as_text(lines: Iterable[dict[str, object]]) -> str:
    return "".join(f"{json.dumps(line)}\n" for line in lines)


def _leased(holder: str, request: str, numbers: Sequence[int]) -> dict[str, object]:
    return {"holder": holder, "request": request, "numbers": list(numbers)}

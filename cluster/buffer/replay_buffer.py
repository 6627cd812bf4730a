"""The replay buffer as a plain class: every episode is in its stage's log before it is acknowledged."""

from __future__ import annotations

import copy
import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.buffer.log_mark import LogMark
from cluster.buffer.stream import STAGE, GameStream, Leases, StreamCounts
from spag_ray.episodes.episode import EpisodeHead, GameCount
from spag_ray.episodes.log import LOG_START, EpisodeLog, LogFaults, LogPlace, holds, log_identity, read_records_from
from spag_ray.episodes.wire import read_head
from spag_ray.errors import InputError, RunFolderError
from spag_ray.host.folder_lease import FolderLease
from spag_ray.stages import Stage

STAGE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.@+-]*")


class ReplayBuffer:
    """Episodes by stage, as msgpack, in memory until they are taken and on disk for good. A stage is a list of games
    known beforehand, taken whole; `stream`, if there is one, is the stage without an end. Games in a stage's log count
    as played. `lease`: of the run folder; once it is lost, LeaseLostError is raised and nothing is written."""

    def __init__(self, folder: str, lease: FolderLease | None = None) -> None:
        self.stream: GameStream | None = None
        self._folder = Path(folder)
        self._lease = lease
        self._logs: dict[str, EpisodeLog] = {}
        self._waiting: dict[str, dict[int, bytes]] = {}
        self._counts: dict[str, GameCount] = {}
        self._came: dict[tuple[str, str], GameCount] = {}
        self._waiting_since: dict[str, float] = {}
        self._identity: int | None = None  # of the stream's log
        self.damage: dict[str, str] = {}

    def add(self, records: Iterable[bytes]) -> int:
        """`keep`, `write`, `written`; returns how many were new."""
        new = self.keep([(read_head(data), data) for data in records])
        self.written(self.write(new))
        return sum(map(len, new.values()))

    def keep(self, records: Iterable[tuple[EpisodeHead, bytes]]) -> dict[str, dict[int, bytes]]:
        """Keep encoded episodes; one that arrives twice (sent again after a lost reply) is kept once. Returns the new
        ones, {stage: {number: record}}."""
        new: dict[str, dict[int, bytes]] = {}
        for head, data in records:
            if self._keep(head, data):
                new.setdefault(head.stage, {})[head.number] = data
                self._count(head)
                phase = Stage.parse(head.stage).phase
                self._came.setdefault((phase, head.game), GameCount()).add(head)
        return new

    def write(self, records: Mapping[str, Mapping[int, bytes]]) -> dict[int, LogPlace]:
        """Write to the logs of their stages; on disk when this returns. Returns where the stream's episodes are, for
        `written`. May be called in another thread. Raises RunFolderError when the disk takes no more."""
        self.check_lease()
        places: dict[int, LogPlace] = {}
        for stage, kept in records.items():
            try:
                found = self._log(stage).append(*kept.values())
            except OSError as error:
                raise RunFolderError(f"{self._folder}: an episode could not be written: {error.strerror}") from error
            if stage == STAGE:
                places = dict(zip(kept, found, strict=True))
        return places

    def written(self, places: Mapping[int, LogPlace]) -> None:
        """What `write` returned."""
        if self.stream is not None and places:
            if self._identity is None:
                self._identity = log_identity(self._path(STAGE))
            self.stream.written(places, self._log(STAGE).end, self._identity)

    def has_read(self, stage: str) -> bool:
        """Whether a stage's log is in memory."""
        return stage in self._waiting or (stage == STAGE and self.stream is not None)

    def read(self, stage: str) -> None:
        """Read a stage's log: slow if it is long, so an actor calls this in a thread."""
        self._stage(stage)

    def played(self, stage: str) -> dict[int, str]:
        """{number: word} of the played games of a stage, including those in its log."""
        return {number: read_head(data).scenario for number, data in self._stage(stage).items()}

    def take(self, stage: str) -> list[bytes]:
        """All episodes of a stage, in the order of their numbers; they are removed from memory, and the log is closed:
        a run has thousands of stages. Nothing may be written meanwhile; what comes later opens it again."""
        waiting = self._stage(stage)
        del self._waiting[stage]
        self._waiting_since.pop(stage, None)
        if (log := self._logs.pop(stage, None)) is not None:
            log.close()
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

    def open_stream(self, stream: GameStream, cursor: Mapping[str, Any] | None, leases: Leases | None = None) -> None:
        """Open `stream`, and restore it from the log, beginning at the cursor's mark."""
        self.stream = stream
        self._counts.pop(STAGE, None)
        self._identity = log_identity(self._path(STAGE))
        mark = LogMark.from_cursor(cursor)
        if mark is not None and (mark.identity != self._identity or not holds(self._path(STAGE), mark.place)):
            mark = None  # of a log that was set aside or lost: all of this one is read
        if mark is not None:
            self._counts[STAGE] = copy.deepcopy(mark.count)
        begin = mark.place if mark is not None else LOG_START
        places: dict[int, LogPlace] = {}
        end = begin

        def records() -> Iterator[tuple[EpisodeHead, bytes]]:
            nonlocal end
            for place, head, data in self._recorded(STAGE, begin):
                places.setdefault(head.number, place)
                end = place.after(data)
                yield head, data

        stream.restore(cursor, records(), leases, mark)
        stream.written(places, end, self._identity)

    def reread(self) -> None:
        """Forget everything in memory after logs were set aside; it is read again from the remaining logs."""
        for log in self._logs.values():
            log.close()
        self._logs, self._waiting, self._counts, self._waiting_since = {}, {}, {}, {}
        self._identity = None

    def _recorded(self, stage: str, begin: LogPlace = LOG_START) -> Iterator[tuple[LogPlace, EpisodeHead, bytes]]:
        """The records in the log of a stage from a place on; counts them and notes damage."""
        faults = LogFaults()
        for place, data in read_records_from(self._path(stage), begin, faults):
            head = read_head(data)
            self._count(head)
            yield place, head, data
        if faults:
            self.damage[stage] = str(faults)

    def _count(self, head: EpisodeHead) -> None:
        self._counts.setdefault(head.stage, GameCount()).add(head)

    def _keep(self, head: EpisodeHead, data: bytes) -> bool:
        if self.stream is not None and head.stage == STAGE:
            return self.stream.add(head, data)
        waiting = self._stage(head.stage)
        if head.number in waiting:
            return False
        waiting[head.number] = data
        self._waiting_since.setdefault(head.stage, time.monotonic())
        return True

    def _stage(self, stage: str) -> dict[int, bytes]:
        if stage not in self._waiting:
            self._counts.pop(stage, None)
            self._waiting[stage] = {head.number: data for _, head, data in self._recorded(stage)}
        return self._waiting[stage]

    def has_lease(self) -> bool:
        return self._lease is None or self._lease.is_ours()

    def check_lease(self, now: bool = False) -> None:
        """Raises LeaseLostError."""
        if self._lease is not None:
            self._lease.check(now)

    def _log(self, stage: str) -> EpisodeLog:
        if stage not in self._logs:
            self.check_lease(now=True)  # opening the log cuts off a torn end
            self._logs[stage] = EpisodeLog(self._path(stage))
        return self._logs[stage]

    def _path(self, stage: str) -> Path:
        if not STAGE_NAME.fullmatch(stage):
            raise InputError(
                f"an episode of stage {stage[:40]!r}: a stage is a file name of letters, digits and - _ . @ +"
            )
        return self._folder / f"{stage}.log"


@dataclass(frozen=True)
class BufferSample:
    """The buffer at one moment. `played`: {(phase, game): what arrived since its process started}. `waiting` episodes,
    of which the oldest arrived `oldest_s` ago."""

    played: Mapping[tuple[str, str], GameCount]
    waiting: int
    oldest_s: float
    stream: StreamCounts | None

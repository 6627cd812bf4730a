"""The replay buffer as a plain class: every episode is in its stage's log before it is acknowledged."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cluster.buffer.stream import STAGE, GameStream, Leases, StreamCounts
from spag_ray.episodes.game_count import GameCount
from spag_ray.episodes.head import EpisodeHead
from spag_ray.episodes.log import EpisodeLog, LogFaults, read_records
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
        self._came: dict[str, GameCount] = {}
        self._waiting_since: dict[str, float] = {}
        self.damage: dict[str, str] = {}

    def add(self, records: Iterable[bytes]) -> int:
        """`keep`, then `write`; returns how many were new."""
        new = self.keep(records)
        self.write(new)
        return sum(map(len, new.values()))

    def keep(self, records: Iterable[bytes]) -> dict[str, dict[int, bytes]]:
        """Keep encoded episodes; one that arrives twice (sent again after a lost reply) is kept once. Returns the new
        ones, {stage: {number: record}}."""
        new: dict[str, dict[int, bytes]] = {}
        for data in records:
            head = read_head(data)
            if self._keep(head, data):
                new.setdefault(head.stage, {})[head.number] = data
                self._count(head)
                self._came.setdefault(Stage.parse(head.stage).phase, GameCount()).add(head)
        return new

    def write(self, records: Mapping[str, Mapping[int, bytes]]) -> None:
        """Write to the logs of their stages; on disk when this returns. Raises RunFolderError when the disk is full."""
        self.check_lease()
        for stage, kept in records.items():
            try:
                self._log(stage).append(*kept.values())
            except OSError as error:
                raise RunFolderError(f"{self._folder}: an episode could not be written: {error.strerror}") from error

    def played(self, stage: str) -> dict[int, str]:
        """{number: word} of the played games of a stage, including those in its log."""
        return {number: read_head(data).target_word for number, data in self._stage(stage).items()}

    def take(self, stage: str) -> list[bytes]:
        """All episodes of a stage, in the order of their numbers; they are removed from memory."""
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

    def open_stream(self, stream: GameStream, cursor: Mapping[str, Any] | None, leases: Leases | None = None) -> None:
        """Open `stream`, and restore it from the log."""
        self.stream = stream
        self._counts.pop(STAGE, None)
        stream.restore(cursor, self._recorded(STAGE), leases)

    def reread(self) -> None:
        """Forget everything in memory after logs were set aside; it is read again from the remaining logs."""
        for log in self._logs.values():
            log.close()
        self._logs, self._waiting, self._counts, self._waiting_since = {}, {}, {}, {}

    def _recorded(self, stage: str) -> Iterator[tuple[EpisodeHead, bytes]]:
        """The records in the log of a stage; counts them and notes damage."""
        faults = LogFaults()
        for data in read_records(self._path(stage), faults):
            head = read_head(data)
            self._count(head)
            yield head, data
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
            self._waiting[stage] = {head.number: data for head, data in self._recorded(stage)}
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
    """The buffer at one moment. `played`: {phase: what arrived since its process started}; `waiting` episodes, of which
    the oldest arrived `oldest_s` ago."""

    played: Mapping[str, GameCount]
    waiting: int
    oldest_s: float
    stream: StreamCounts | None

"""The episode log: judged games, written to disk before they are acknowledged.

A log is a run of segments, `NAME.log`, `NAME.1.log`, `NAME.2.log` ..., each a run of records: 4 bytes of mark, 4 of
length, 4 of CRC-32 of what follows (big-endian), then that many bytes of msgpack (wire.py).

After a crash or disk fault: an incomplete tail, without a whole record after it, is cut when the log is opened for
writing; damage followed by whole records is skipped, counted and logged. Reading holds one record at a time.
"""

from __future__ import annotations

import logging
import mmap
import os
import re
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import accumulate, chain
from pathlib import Path
from typing import NamedTuple

from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import MAX_RECORD_BYTES, decode
from spag_ray.errors import InputError
from spag_ray.host.whole_files import sync_folder
from spag_ray.stages import Stage, order_of

MARK = b"\xf0SPG"  # 0xf0 starts a UTF-8 character of four bytes, which "SPG" does not continue: no text contains this
SEGMENT_BYTES = 256 * 2**20
_HEADER = struct.Struct(">4sII")
_SEGMENT = re.compile(r"(.+?)(?:\.\d+)?\.log", re.DOTALL)
_LATER = re.compile(r"(.+)\.\d+\.log")
_say = logging.getLogger("spag_ray")


@dataclass
class LogFaults:
    """Faults of a log: damage between whole records, bytes after the last one, and (`read_stage`) records that are no
    episodes of this version."""

    num_gaps: int = 0
    gap_bytes: int = 0
    torn_bytes: int = 0
    num_refused: int = 0

    def __str__(self) -> str:
        parts = []
        if self.num_gaps:
            parts.append(f"{self.num_gaps} damaged places ({self.gap_bytes} bytes) skipped")
        if self.torn_bytes:
            parts.append(f"a torn tail of {self.torn_bytes} bytes cut")
        if self.num_refused:
            parts.append(f"{self.num_refused} records are not episodes of this version")
        return ", ".join(parts)

    def __bool__(self) -> bool:
        return bool(self.num_gaps or self.torn_bytes or self.num_refused)


class LogPlace(NamedTuple):
    """Where a record begins, or the log ends: the number of a segment, and the offset in it in bytes."""

    segment: int
    offset: int

    def after(self, data: bytes) -> LogPlace:
        """Where this record ends."""
        return LogPlace(self.segment, self.offset + _HEADER.size + len(data))


LOG_START = LogPlace(0, 0)


class EpisodeLog:
    """A log open for appending; `faults`: found when it was opened. When a segment reaches `segment_bytes`, a new one
    is started."""

    def __init__(self, path: Path, segment_bytes: int = SEGMENT_BYTES) -> None:
        self.path = path
        self.faults = LogFaults()
        self._segment_bytes = segment_bytes
        path.parent.mkdir(parents=True, exist_ok=True)
        existing = segments(path)
        self._number = max(len(existing) - 1, 0)
        if existing:
            last = existing[-1]
            deque(scan(last, self.faults), maxlen=0)
            if self.faults.torn_bytes:
                os.truncate(last, last.stat().st_size - self.faults.torn_bytes)
                _say.warning("%s: %s", last, self.faults)
        self._file = self._open(self._number)

    @property
    def end(self) -> LogPlace:
        return LogPlace(self._number, self._file.tell())

    def append(self, *records: bytes) -> list[LogPlace]:
        """The records are on the disk when this returns. Returns where each begins. A partly written record is
        removed again."""
        if self._file.tell() >= self._segment_bytes:
            following = self._open(self._number + 1)
            self._file.close()
            self._number, self._file = self._number + 1, following
        before = self._file.tell()
        try:
            headers = (_HEADER.pack(MARK, len(data), zlib.crc32(data)) for data in records)
            self._file.write_all(b"".join(chain.from_iterable(zip(headers, records, strict=True))))
            self._file.sync()
        except OSError:
            self._file.truncate(before)
            self._file.seek(before)
            raise
        sizes = (_HEADER.size + len(data) for data in records)
        return [LogPlace(self._number, offset) for offset in accumulate(sizes, initial=before)][:-1]

    def close(self) -> None:
        self._file.close()

    def _open(self, number: int) -> _Unbuffered:
        return _Unbuffered(segment_path(self.path, number))


class _Unbuffered(FileIO):
    """Appends to a file, without a buffer that a failed write would leave half full."""

    def __init__(self, path: Path) -> None:
        is_new = not path.exists()
        super().__init__(path, "a")
        if is_new:
            sync_folder(path.parent)

    def write_all(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            view = view[os.write(self.fileno(), view) :]

    def sync(self) -> None:
        os.fsync(self.fileno())


def segment_path(path: Path, number: int) -> Path:
    return path if number == 0 else path.with_name(f"{path.stem}.{number}{path.suffix}")


def segments(path: Path) -> list[Path]:
    """The segments of a log that are there, in order."""
    found: list[Path] = []
    while (segment := segment_path(path, len(found))).exists():
        found.append(segment)
    return found


def read_records(path: Path, faults: LogFaults | None = None) -> Iterator[bytes]:
    """Every whole record of a log as bytes, in order. What was skipped is added to `faults` and logged."""
    return (data for _, data in read_records_from(path, LOG_START, faults))


def read_records_from(
    path: Path, begin: LogPlace = LOG_START, faults: LogFaults | None = None
) -> Iterator[tuple[LogPlace, bytes]]:
    """`read_records` from a place on, each with its own place. What lies before `begin` is not looked at."""
    for number, segment in enumerate(segments(path)):
        if number >= begin.segment:
            offset = begin.offset if number == begin.segment else 0
            for place, data in read_segment(segment, faults, offset):
                yield LogPlace(number, place), data


def log_identity(path: Path) -> int | None:
    """The checksum of a log's first record, which tells it from other logs of the same name; None of an empty one."""
    return next((zlib.crc32(data) for data in read_records(path)), None)


def holds(path: Path, place: LogPlace) -> bool:
    """Whether a log reaches so far."""
    segment = segment_path(path, place.segment)
    return segment.exists() and segment.stat().st_size >= place.offset


def read_segment(segment: Path, faults: LogFaults | None = None, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """`scan` that logs what was skipped."""
    here = LogFaults()
    yield from scan(segment, here, begin)
    if here:
        _say.warning("%s: %s", segment, here)
    if faults is not None:
        faults.num_gaps += here.num_gaps
        faults.gap_bytes += here.gap_bytes
        faults.torn_bytes += here.torn_bytes


def read_log(path: Path, faults: LogFaults | None = None) -> Iterator[Episode]:
    """Every whole episode of a log, one at a time."""
    for data in read_records(path, faults):
        yield decode(data)


def stage_of(segment: Path) -> Stage:
    """The stage whose log, NAME.log, NAME.1.log ..., this file is a segment of."""
    found = _SEGMENT.fullmatch(segment.name)
    return Stage.parse(segment.name if found is None else found[1])


def stage_logs(folder: Path) -> dict[str, Path]:
    """{stage: the first segment of its log}, in the order of the run."""
    names = {path.name for path in folder.glob("*.log")}
    stages = [
        name.removesuffix(".log")
        for name in names
        if (segment := _LATER.fullmatch(name)) is None or f"{segment[1]}.log" not in names
    ]
    return {stage: folder / f"{stage}.log" for stage in sorted(stages, key=order_of)}


def read_stage(path: Path, faults: LogFaults) -> Iterator[tuple[int, Episode]]:
    """(place of its record, episode) for each episode of a log, one at a time. What cannot be read is counted."""
    for place, record in enumerate(stage_records(path, faults)):
        try:
            episode = decode(record)
        except InputError:
            faults.num_refused += 1
            continue
        yield place, episode


def stage_records(path: Path, faults: LogFaults) -> Iterator[bytes]:
    """Every whole record of a log; adds to `faults` and logs nothing."""
    for segment in segments(path):
        yield from (data for _, data in scan(segment, faults))


def scan(segment: Path, faults: LogFaults, begin: int = 0) -> Iterator[tuple[int, bytes]]:
    """Every whole record from an offset on, and where it begins; adds to `faults` and logs nothing."""
    size = segment.stat().st_size
    if size <= begin:
        return
    with segment.open("rb") as file, mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ) as view:
        end = begin  # of the last whole record
        place = begin
        while place >= 0:
            data = _record_at(view, place, size)
            if data is None:
                place = view.find(MARK, place + 1)
                continue
            if place > end:
                faults.num_gaps += 1
                faults.gap_bytes += place - end
            end = place + _HEADER.size + len(data)
            yield place, data
            place = end
        faults.torn_bytes += size - end


def _record_at(view: mmap.mmap, place: int, size: int) -> bytes | None:
    if place + _HEADER.size > size:
        return None
    mark, length, crc = _HEADER.unpack_from(view, place)
    begin = place + _HEADER.size
    # Zeros after a mark are what a disk has of a record after a power loss; they would pass for an empty one.
    if mark != MARK or not 0 < length <= MAX_RECORD_BYTES or begin + length > size:
        return None
    data = view[begin : begin + length]
    return data if zlib.crc32(data) == crc else None

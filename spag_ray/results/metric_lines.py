"""Reads a run's metrics.jsonl while it is written: each complete line once; and tells from its lines when the run ran.

lines = MetricLines(folder / "metrics.jsonl")
for line in lines.new():  # {"time": 1700000000.0, "kind": "sync", "version": 3, ...}
    ...                   # call new() again later for more lines
for time, line in lines.typed():  # 1700000000.0, SyncLine(policy="policy", report=SyncReport(version=3, ...))
    ...
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from spag_ray.results.former_records import named_line
from spag_ray.results.lines import EngineStateLine, Line, ResumedLine, SetAsideLine, parse_line

LONGEST_SILENCE_S = 300.0  # a longer gap before a resume counts as a pause
_OF_ENGINES = ("engine_state", "engine_joined", "engine_lost", "engine_left")
_OF_A_START = (*_OF_ENGINES, "restart", "buffer", "log_damage")
AnyLine = TypeVar("AnyLine", bound=Line)


class MetricLines:
    """Holds one line at a time. An incomplete last line is returned later, when it is complete. A damaged line (for
    example after a crash) is left out and counted in `num_damaged`."""

    def __init__(self, path: Path) -> None:
        self.num_damaged = 0
        self._path = path
        self._offset = 0
        self._first = b""  # the first line that was read: which file it was

    def is_replaced(self) -> bool:
        """Whether the file is no longer the one that was read: its run was deleted and started again. Read the new file
        with a new MetricLines. The first line, which has the time, decides: a file system may reuse the inode."""
        try:
            with self._path.open("rb") as file:
                return file.read(len(self._first)) != self._first or file.seek(0, os.SEEK_END) < self._offset
        except OSError:
            return False

    def new(self) -> Iterator[dict[str, Any]]:
        """The lines written since the last call; none if there is no file yet. Each has `time`, seconds since the
        epoch, and `kind`."""
        try:
            file = self._path.open("rb")
        except FileNotFoundError:
            return
        with file:
            file.seek(self._offset)
            for raw in file:
                if not raw.endswith(b"\n"):
                    return
                self._first = self._first or raw
                self._offset += len(raw)
                if (line := _parsed(raw)) is not None:
                    if (named := named_line(line, self._path.parent)) is not None:
                        yield named
                elif raw.strip():
                    self.num_damaged += 1

    def typed(self) -> Iterator[tuple[float, Line | None]]:
        """As `new`, but (time, typed line). The line is None for a kind that this version does not write. A line that
        does not fit its kind counts as damaged."""
        for raw in self.new():
            try:
                line = parse_line(raw)
            except (TypeError, ValueError):
                self.num_damaged += 1
                continue
            yield float(raw["time"]), line

    def of(self, kind: type[AnyLine]) -> Iterator[AnyLine]:
        """As `typed`, but the lines of one kind alone."""
        return (line for _, line in self.typed() if isinstance(line, kind))


def _parsed(raw: bytes) -> dict[str, Any] | None:
    try:
        line = json.loads(raw)
    except (ValueError, RecursionError):
        return None
    is_whole = isinstance(line, dict) and isinstance(line.get("kind"), str) and _is_time(line.get("time"))
    return line if is_whole else None


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < 1e10


class Clock:
    """`take` gets every line in the order of the file. `began`, `ended`: when the first and the newest of `num_lines`
    were written, in seconds since the epoch. `pauses`: (from, to) of times in which the run did not run.

    A resumed run starts its engines before it writes that it was resumed. So a silence that a new engine ended is a
    pause, unless other work follows before a resume does: then it is taken back."""

    def __init__(self, lines: Iterable[tuple[float, Line | None]] = ()) -> None:
        self.num_lines = 0
        self.began = self.ended = 0.0
        self.pauses: list[tuple[float, float]] = []
        self._last_kind = ""
        # Of the last pauses those that no resume has confirmed: a start may fail, and be tried again.
        self._num_open = 0
        for time, line in lines:
            self.take(time, line)

    @property
    def paused_s(self) -> float:
        return sum(end - begin for begin, end in self.pauses)

    @property
    def seconds(self) -> float:
        return self.running(self.ended)

    def running(self, time: float) -> float:
        """How long the run had run at `time`, in seconds, without pauses."""
        paused = sum(max(0.0, min(time, end) - begin) for begin, end in self.pauses)
        return max(0.0, min(time, self.ended) - self.began - paused)

    def take(self, time: float, line: Line | None) -> None:
        """`line`: None for one of an unknown kind."""
        if not self.num_lines:
            self.began = self.ended = time
        self.num_lines += 1
        kind = "" if line is None else line.kind
        is_resumed = isinstance(line, ResumedLine | SetAsideLine)
        if time - self.ended > LONGEST_SILENCE_S:
            # Between a start, or a restart of learners, and the resume the run loads models: it runs.
            is_bare = is_resumed and self._last_kind not in (*_OF_ENGINES, "restart")
            is_start = isinstance(line, EngineStateLine) and not line.before
            if is_bare or is_start:
                self.pauses.append((self.ended, time))
                self._num_open += is_start
        if is_resumed:
            self._num_open = 0
        elif self._num_open and kind not in _OF_A_START:
            del self.pauses[-self._num_open :]
            self._num_open = 0
        self.ended = max(self.ended, time)
        self._last_kind = kind

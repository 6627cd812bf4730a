"""Records on disk which games of a stream are under way, so that a restarted buffer gives none of them out twice.

One JSON line for each answered request and for each dead arena, written before the answer is sent. The file survives
the buffer's process, but appended lines are not synced: after a power cut a game may be played twice, and counts once.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO

from cluster.buffer.stream import Leases
from spag_ray.errors import RunFolderError
from spag_ray.host.whole_files import write_atomically

MAX_FINISHED_LINES = 1000


class LeaseLog:
    """The lease log of the open stream; `path` is a file in the folder of its cursor. Writing may raise
    RunFolderError."""

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

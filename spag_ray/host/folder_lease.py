"""The lease of a run folder: only one run at a time writes into it, and other runs see which.

    lease = FolderLease.take(folder)   raises RunFolderError when a run is alive in it
    Heartbeat(lease, note)             in the process that it names
    lease.check()                      before anything is written; raises LeaseLostError
    lease.release()

    with held(folder) as lease:        the same in a block
        lease.hand_over()              if another process of the run has adopted the lease, and keeps it after the block

    FOLDER/lease/N            who took it, written once; the highest N is the lease
    FOLDER/lease/TOKEN.M.beat who holds it now, and a count that every heartbeat raises; replaced atomically. M rises
                              when another process of the same run adopts the lease. Each process writes its own file;
                              the highest M holds the lease

It needs no locks and no common clock, so it works on any shared file system. A file N is created exclusively, with the
number after the highest, so only one of several takers succeeds. No process writes to another's files. A holder counts
as dead if its process has ended on this host, or if its count has not changed for DEAD_AFTER_S by the taker's clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from spag_ray.errors import LeaseLostError, RunFolderError
from spag_ray.host.processes import Process, has_ended, this_process

HEARTBEAT_S = 5.0
DEAD_AFTER_S = 60.0
LOOK_EVERY_S = 0.25
CHECK_EVERY_S = 1.0  # `check` without `now` reads the folder at most so often
# How long `release` waits for the end of another process of the run, and elsewhere for a heartbeat of it.
END_WITHIN_S = 5.0
SILENT_WITHIN_S = 3 * HEARTBEAT_S


@dataclass(frozen=True)
class Holder:
    """The holder of a lease, from its files."""

    token: str
    run: str
    process: Process
    count: int = 0
    is_released: bool = False

    @classmethod
    def from_text(cls, text: str) -> Holder:
        """Parses the files. Raises ValueError, KeyError or TypeError for incomplete ones."""
        found = json.loads(text)
        return cls(**{**found, "process": Process(**found["process"])})

    def __str__(self) -> str:
        return f"run {self.run}, process {self.process.pid} on {self.process.host}"


class FolderLease:
    """A lease that was taken. It may be sent to other processes of the run; any of them may check it."""

    def __init__(self, folder: Path, number: int, token: str) -> None:
        self.folder = folder
        self._number = number
        self._token = token
        self._term = 0  # of the beats that this process writes
        self._writing = threading.Lock()
        self._checked_at: float | None = None
        self.is_handed_over = False

    def __reduce__(self) -> tuple[type[FolderLease], tuple[Path, int, str]]:
        return FolderLease, (self.folder, self._number, self._token)  # another process has another clock

    @classmethod
    def take(
        cls,
        folder: Path,
        say: Callable[[str], None] = lambda text: None,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> FolderLease:
        """Take the lease of an existing folder. `say` is called with a message while it waits.

        Raises RunFolderError when a live run holds it, or the folder is not writable.
        """
        folder = folder.resolve()
        place = folder / "lease"
        try:
            while True:
                place.mkdir(exist_ok=True)
                before = _newest(place)
                if before and not _is_free(place, before, say, clock, sleep):
                    continue  # another run has taken it in between
                lease = cls(folder, before + 1, secrets.token_hex(8))
                if lease._make():
                    return lease
        except OSError as error:
            raise RunFolderError(f"{place}: the lease cannot be taken: {error.strerror}") from error

    def adopt(self) -> None:
        """Make this process the holder: it belongs to the same run and continues when the previous holder ends."""
        self.check(now=True)
        try:
            with self._writing:
                self._term = _newest_term(self._place, self._token) + 1
                self._write(Holder(self._token, self.folder.name, this_process()))
        except OSError as error:
            raise RunFolderError(f"{self._place}: the lease cannot be written: {error.strerror}") from error

    def renew(self) -> bool:
        """Write a heartbeat. Returns False and writes nothing if another process holds the lease or it was released."""
        self.check(now=True)
        with self._writing:
            holder = self._holder()
            if holder.is_released or holder.process != this_process():
                return False
            self._write(replace(holder, count=holder.count + 1))
        return True

    def check(self, now: bool = False) -> None:
        """Raises LeaseLostError if another run holds it; reads the folder at most every CHECK_EVERY_S, or `now`."""
        if not now and self._checked_at is not None and time.monotonic() - self._checked_at < CHECK_EVERY_S:
            return
        if not self.is_ours():
            holder = _parsed(*_texts(self._place, _newest(self._place)))
            who_now = f"{holder} has it now" if holder else "it no longer exists"
            raise LeaseLostError(
                f"{self.folder}: this run has lost the lease of its folder ({who_now}), so it ends and "
                "leaves the folder unchanged; a run loses the lease if it sent no heartbeat for "
                f"{DEAD_AFTER_S:g} s, or if {self._place} was deleted"
            )
        self._checked_at = time.monotonic()

    def is_ours(self) -> bool:
        return _newest(self._place) == self._number and _token_in(_read(self._place / str(self._number))) == self._token

    def hand_over(self) -> None:
        """Leave the lease to the process that has adopted it: the end of the block of `held` does not release it."""
        self.is_handed_over = True

    def release(self) -> bool:
        """Release the lease, so the next run can take it at once. Returns False, and writes nothing, if another living
        process of this run holds it; waits for a killed one to end. Does nothing if the lease is lost."""
        if not self.is_ours():
            return True
        if self._is_held_by_another():
            return False
        with self._writing:
            self._term = _newest_term(self._place, self._token)
            self._write(replace(self._holder(), is_released=True))
        return True

    def _is_held_by_another(self) -> bool:
        """Whether another process holds it and has not ended within END_WITHIN_S. On another host it counts as ended if
        it sends no heartbeat for SILENT_WITHIN_S."""
        first = holder = self._holder()
        began = time.monotonic()
        while holder.process != this_process() and not has_ended(holder.process):
            is_here = holder.process.is_elsewhere_here()
            if time.monotonic() - began > (END_WITHIN_S if is_here else SILENT_WITHIN_S):
                return is_here or holder != first
            time.sleep(0.02)
            holder = self._holder()
        return False

    @property
    def _place(self) -> Path:
        return self.folder / "lease"

    def _make(self) -> bool:
        """Create the lease's files; False if another process created them first."""
        holder = Holder(self._token, self.folder.name, this_process())
        path = self._place / str(self._number)
        try:
            with path.open("x", encoding="utf-8") as file:
                file.write(_as_text(holder))
        except FileExistsError:
            return False
        if _newest(self._place) != self._number:  # the number was free because a newer lease removed it
            path.unlink(missing_ok=True)
            return False
        self._write(holder)
        self._remove_older()
        return True

    def _remove_older(self) -> None:
        """Remove only older leases: during a long pause in here, another run may have taken a newer one."""
        for old in self._place.iterdir():
            if old.name.isdecimal() and int(old.name) < self._number:
                for file in self._place.glob(f"{_token_in(_read(old)) or old.name}.*"):
                    file.unlink(missing_ok=True)
                old.unlink(missing_ok=True)

    def _holder(self) -> Holder:
        term = _newest_term(self._place, self._token)
        return Holder.from_text(_beat_of(self._place, self._token, term).read_text(encoding="utf-8"))

    def _write(self, holder: Holder) -> None:
        partial = self._place / f"{self._token}.{os.getpid()}.{threading.get_ident()}.partial"
        partial.write_text(_as_text(holder), encoding="utf-8")
        partial.replace(_beat_of(self._place, self._token, self._term))


class Heartbeat:
    """Renews a lease in a thread until it is stopped or another process holds the lease. Retries if the folder cannot
    be written; `note` is called once."""

    def __init__(self, lease: FolderLease, note: Callable[[str], None], every_s: float = HEARTBEAT_S) -> None:
        self._lease = lease
        self._note = note
        self._every_s = every_s
        self._is_over = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._is_over.set()
        self._thread.join()

    def _beat(self) -> None:
        said = False
        while not self._is_over.wait(self._every_s):
            try:
                if not self._lease.renew():
                    return
            except LeaseLostError:
                return  # the next write raises it
            except OSError as error:
                if not said:
                    self._note(f"the lease of the run folder could not be renewed ({error}); it will be retried")
                said = True


@contextlib.contextmanager
def held(folder: Path, say: Callable[[str], None] = lambda text: None) -> Iterator[FolderLease]:
    """Hold the lease during the block, or until it is handed over. Raises as `FolderLease.take` does."""
    lease = FolderLease.take(folder, say)
    heartbeat = Heartbeat(lease, say)
    try:
        yield lease
    finally:
        heartbeat.stop()
        try:
            if not lease.is_handed_over and not lease.release():
                say(f"the lease of {folder} is not released: another process of this run lives and holds it")
        except OSError as error:  # for example on a full disk; it must not hide an exception of the block
            say(f"the lease of {folder} could not be released ({error}); it counts as dead after {DEAD_AFTER_S:g} s")


def _is_free(
    place: Path, number: int, say: Callable[[str], None], clock: Callable[[], float], sleep: Callable[[float], None]
) -> bool:
    """Whether lease `number` was released or its holder is dead; False if it is no longer the newest.

    Raises RunFolderError as soon as its holder proves to be alive.
    """
    first, since, said = _texts(place, number), clock(), False
    while _newest(place) == number:
        texts = _texts(place, number)
        holder = _parsed(*texts)
        if holder is not None and (holder.is_released or has_ended(holder.process)):
            return True
        if texts != first:
            raise RunFolderError(
                f"{place.parent}: {holder or 'another run'} is alive in it; stop that run first, or choose another "
                "--run-dir. The lease of a dead run is taken over automatically, at once on its own host, elsewhere "
                f"after {DEAD_AFTER_S:g} s. To take it from a live run, delete {place}; that run then ends itself"
            )
        if clock() - since >= DEAD_AFTER_S:
            return True
        if not said:
            say(
                f"{place.parent}: {holder or 'another run'} holds it; checking for up to {DEAD_AFTER_S:g} s if it lives"
            )
            said = True
        sleep(LOOK_EVERY_S)
    return False


def _newest(place: Path) -> int:
    """The highest number; 0 if there is none."""
    try:
        return max((int(name) for name in os.listdir(place) if name.isdecimal()), default=0)
    except FileNotFoundError:
        return 0


def _texts(place: Path, number: int) -> tuple[str, str]:
    """The text of a lease's two files; empty for a missing one."""
    taken = _read(place / str(number))
    token = _token_in(taken)
    return taken, _read(_beat_of(place, token, _newest_term(place, token))) if token else ""


def _beat_of(place: Path, token: str, term: int) -> Path:
    return place / f"{token}.{term}.beat"


def _newest_term(place: Path, token: str) -> int:
    return max((int(path.name.split(".")[1]) for path in place.glob(f"{token}.*.beat")), default=0)


def _parsed(*texts: str) -> Holder | None:
    """From the last text that is complete."""
    for text in reversed(texts):
        with contextlib.suppress(ValueError, KeyError, TypeError):  # it is being written, or its writer has died
            return Holder.from_text(text)
    return None


def _token_in(text: str) -> str | None:
    holder = _parsed(text)
    return holder.token if holder else None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return ""


def _as_text(holder: Holder) -> str:
    return json.dumps(asdict(holder)) + "\n"

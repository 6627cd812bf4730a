"""Files and folders that are whole or absent, and a lock for files that several processes change.

write_atomically(folder / "ended.json", text)
with locked(folder / "matches.json"):        # read, merge, write_atomically
    ...
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import glob
import logging
import os
import secrets
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

from spag_ray.errors import InputError, RunFolderError, SpagError, meant_path

LOCK_WITHIN_S = 60.0
LOOK_EVERY_S = 0.02
LEFT_AFTER_S = 3600.0  # a partial file that nobody has written to for so long is of a process that was killed
# What a disk refuses, or a path that it does not take: no fault of the program. A missing file may be one.
REFUSED = (
    *(errno.ENAMETOOLONG, errno.ELOOP, errno.ENOTDIR, errno.EACCES, errno.EPERM, errno.EROFS),
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.ESTALE),
)
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # Lustre mounted without `flock`, NFS without lockd
_say = logging.getLogger("spag_ray")


@contextlib.contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A place for a file or a folder, which gets the name `path` when the block ends. An exception leaves nothing.

    Each writer has a place of its own, so two at once do not mix. Raises OSError if `path` is a folder that has files.
    """
    for left in leftovers(path):
        _remove(left)
    partial = path.with_name(f".{path.name}.{secrets.token_hex(8)}.partial")
    try:
        yield partial
        partial.rename(path)
    finally:
        _remove(partial)


@contextlib.contextmanager
def replaced(path: Path, mode: int = 0o666) -> Iterator[TextIO]:
    """A text file to write. It gets the name `path` when the block ends, and is on the disk then. An exception, a full
    disk or a kill leaves `path` as it was. `mode`: permissions of the new file, less the umask's.

    Of two writers at once the last one wins.
    """
    with (
        whole(path) as partial,
        open(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "w", encoding="utf-8") as file,
    ):
        yield file
        file.flush()
        os.fsync(file.fileno())
    sync_folder(path.parent)


def write_atomically(path: Path, text: str, mode: int = 0o666) -> None:
    """Write a small file so that it exists completely or not at all."""
    with replaced(path, mode) as file:
        file.write(text)


def refuse_existing(path: Path, error: type[SpagError] = InputError) -> None:
    """Raises `error` if something is there already."""
    if path.exists() or path.is_symlink():
        raise error(f"{path} exists; nothing is overwritten: choose another name, or move it away")


@contextlib.contextmanager
def new_file(path: Path) -> Iterator[TextIO]:
    """A text file that a user has asked for, as `replaced`. Raises InputError if it exists, or cannot be written."""
    refuse_existing(path)
    try:
        with replaced(path) as file:
            yield file
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}; choose another place") from error


def given_text(path: str | Path, what: str, remedy: str = "give a UTF-8 file") -> str:
    """A text file that a user has named. Raises InputError if it cannot be read."""
    try:
        return Path(path).read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or error
        near = meant_path(path) if isinstance(error, FileNotFoundError) else ""
        raise InputError(f"{path}: cannot read {what} ({reason}); {remedy}{near}") from error


@contextlib.contextmanager
def locked(path: Path, within_s: float = LOCK_WITHIN_S) -> Iterator[None]:
    """Only one process at a time is in such a block of the same path. Raises RunFolderError if another one is in it for
    `within_s`.

    The lock is flock's, on a file `.NAME.lock` that stays: the kernel releases it when its process ends, however it
    ends, so there are no stale locks. Removing the file would let two processes lock two files of one name.

    On NFS, Linux sends it to the server as a lock of the whole file, which other machines respect, and the server drops
    it when a machine's lease ends; so the file is opened for writing. Two things do not hold there: threads of one
    process do not exclude each other, and a mount with `nolock` or `local_lock=flock` keeps the lock to its machine. A
    file system without locks is used without them, as logged: writers a few milliseconds apart are then still safe.
    """
    lock = path.with_name(f".{path.name}.lock")
    descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        _wait_for(descriptor, lock, within_s)
        yield
    finally:
        os.close(descriptor)  # this releases the lock


def leftovers(path: Path) -> list[Path]:
    """Partial files and folders of a path whose writers were killed. They are never read, but would add up."""
    return [each for each in path.parent.glob(f".{glob.escape(path.name)}.*.partial") if _is_old(each)]


def open_as_folder(folder: Path) -> None:
    """Whoever may read a new folder may read the files in it. safetensors gives those that it writes to their owner
    alone, whatever the umask is; the folder has been made by the umask."""
    mode = stat.S_IMODE(folder.stat().st_mode) & 0o666
    for path in folder.rglob("*"):
        if path.is_file():
            path.chmod(mode)


def sync_file(path: Path) -> None:
    """Its contents are on the disk when this returns."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sync_folder(folder: Path) -> None:
    """A new, renamed or removed name in `folder` is on the disk when this returns."""
    sync_file(folder)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # another writer removes it, too; and it must not hide the writer's own error
        if path.is_dir():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _wait_for(descriptor: int, lock: Path, within_s: float) -> None:
    # Asked again and again, because a blocking flock cannot time out: its holder may be stopped (SIGSTOP).
    end = time.monotonic() + within_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError as error:
            if time.monotonic() > end:
                raise RunFolderError(
                    f"{lock}: another process has held this lock for {within_s:g} s; `fuser {lock}` on its machine "
                    "names it: end it, and start again"
                ) from error
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            _say.warning("%s: this file system has no locks (%s); two writers at once may lose a change", lock, error)
            return
        time.sleep(LOOK_EVERY_S)


def _is_old(partial: Path) -> bool:
    with contextlib.suppress(OSError):  # its writer has just finished
        return time.time() - partial.stat().st_mtime > LEFT_AFTER_S
    return False

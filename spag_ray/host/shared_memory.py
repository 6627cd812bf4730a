"""Files in memory, which other processes on the same machine read without a copy."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import zlib
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from spag_ray.host.processes import has_ended, this_process


def shared_memory() -> Path:
    """A folder in memory, or the one for temporary files if there is none."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def folder_in_shared_memory() -> Iterator[Path]:
    """A folder that is removed at the end of this block; if this process is killed, by the next call on this machine.
    For a file alone use tempfile.TemporaryFile, of which nothing is ever left."""
    owner = this_process()
    # Containers may share this folder, but not their process numbers.
    ours = f"spag_ray-{zlib.crc32(str(owner.machine).encode()):08x}-"
    for left in shared_memory().glob(f"{ours}*"):
        with contextlib.suppress(ValueError):  # not a name of ours
            pid, started = map(int, left.name.removeprefix(ours).split("-")[:2])
            if has_ended(replace(owner, pid=pid, started=started)):
                shutil.rmtree(left, ignore_errors=True)  # another user's stays
    with tempfile.TemporaryDirectory(dir=shared_memory(), prefix=f"{ours}{owner.pid}-{owner.started}-") as folder:
        yield Path(folder)

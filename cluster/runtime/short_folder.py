"""A temporary folder whose path is short enough for sockets, where the user's is not (SLURM makes long ones).

The path of a socket has at most 107 bytes. Below the temporary folder, Ray's sockets need 68 of them, vLLM's and those
of multiprocessing fewer.
"""

from __future__ import annotations

import logging
import os
import tempfile
from pathlib import Path

from cluster.runtime.ray_token import ClusterError

MAX_BYTES = 107 - len("/ray/session_2026-01-01_00-00-00_000000_0000000/sockets/plasma_store")
SHORT_FOLDERS = ("/tmp", "/var/tmp", "/dev/shm")
_say = logging.getLogger("spag_ray")


def use_short_folder() -> None:
    """Makes this process and those that it starts use another temporary folder, if the path of theirs is too long or
    nothing can be written there. Raises ClusterError if there is none."""
    for name in ("RAY_TMPDIR", "TMPDIR"):  # Ray takes the first one; vLLM and Python know only the second
        folder = os.environ.get(name)
        if folder is None or _fits(folder):
            continue
        short = next(filter(_fits, SHORT_FOLDERS), None)
        if short is None:
            raise ClusterError(
                f"{name} is {folder}, where no socket can be: its path may have {MAX_BYTES} characters, and it must be "
                f"writable, like one of {', '.join(SHORT_FOLDERS)}; set RAY_TMPDIR and TMPDIR to such a folder"
            )
        _say.warning("%s: %s is too long a path for sockets, or not writable; %s is used", name, folder, short)
        os.environ[name] = short
        tempfile.tempdir = None  # Python keeps what it has found first


def _fits(folder: str) -> bool:
    if not 0 < len(os.fsencode(folder)) <= MAX_BYTES:
        return False
    path = Path(folder).absolute()
    try:  # Ray makes what is not there
        there = next(each for each in (path, *path.parents) if each.exists())
        with tempfile.TemporaryDirectory(dir=there):
            return True
    except OSError:
        return False

"""Names of processes with which another process on the same machine can check later whether they have ended, and an end
of a process with its parent, however that ends (Linux only)."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
from dataclasses import dataclass
from pathlib import Path

_PROC = Path("/proc")
_PR_SET_PDEATHSIG = 1  # linux/prctl.h


@dataclass(frozen=True)
class Process:
    """`machine` identifies the running kernel and its process-number namespace (a container has its own); None if
    unknown. `started`: in the kernel's ticks since boot, to detect a reused process number."""

    host: str
    machine: str | None
    pid: int
    started: int | None

    def is_elsewhere_here(self) -> bool:
        """Whether it is another process than this one, runs on this machine, and has not ended."""
        here = this_process()
        return self != here and self.machine is not None and self.machine == here.machine and not has_ended(self)


def this_process() -> Process:
    return Process(socket.gethostname(), _machine(), os.getpid(), _started(os.getpid()))


def has_ended(process: Process) -> bool:
    """Whether it has certainly ended: False for a process of another machine, or if unknown."""
    if process.machine is None or process.machine != _machine():
        return False
    try:
        os.kill(process.pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:  # another user's
        pass
    started = _started(process.pid)
    return started is not None and process.started is not None and started != process.started


def end_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Of the calling process: the kernel sends it `by` when the thread of `parent` that forked it ends. What it has
    started itself gets nothing. Exits with 1 if `parent` has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)


def _machine() -> str | None:
    """A name that two processes share only if they see the same processes under the same numbers."""
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        if int(os.readlink(_PROC / "self")) != os.getpid():  # /proc is of another PID namespace
            return None
        return f"{socket.gethostname()} {boot} {os.readlink(_PROC / 'self/ns/pid')}"
    except (OSError, ValueError):
        return None


def _started(pid: int) -> int | None:
    """Ticks since the machine started; -1 for one that has ended and was not waited for; None if it cannot be read."""
    try:
        text = (_PROC / str(pid) / "stat").read_text(encoding="utf-8", errors="replace")
        state, *fields = text.rpartition(")")[2].split()
        return -1 if state in "ZX" else int(fields[18])
    except (OSError, ValueError, IndexError):
        return None

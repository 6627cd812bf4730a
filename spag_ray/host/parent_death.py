"""Ends a process with its parent, however that ends. Linux only."""

from __future__ import annotations

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def end_with(parent: int, by: signal.Signals = signal.SIGKILL) -> None:
    """Of the calling process: the kernel sends it `by` when the thread of `parent` that forked it ends. What it has
    started itself gets nothing. Exits with 1 if `parent` has ended already."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, by)
    if os.getppid() != parent:
        os._exit(1)

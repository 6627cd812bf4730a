"""How a process that computes with large tensors holds its memory. glibc only; other C libraries are left alone."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # names of <malloc.h>
_MADV_DONTNEED = 4  # of <sys/mman.h>


def keep_freed_memory() -> None:
    """Let freed tensors' memory be used again instead of going back to the machine: every page of a new mapping is
    cleared first, which took a seventh of a learner's time. `release_freed_memory` gives it back when wanted."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, -1)
        libc.mallopt(_TOP_PAD, 256 * 2**20)


def release_freed_memory() -> None:
    """Give back what is free now, after batches of changing size often gigabytes. Takes about 20 ms."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def drop_contents(address: int, num_bytes: int) -> None:
    """Give back the whole pages of [address, address + num_bytes), which then read as zeros; the range stays mapped
    and is filled again as it is written. For private memory whose contents nobody needs any more."""
    libc = _glibc()
    if libc is None:
        return
    page = os.sysconf("SC_PAGESIZE")
    begin, end = -(-address // page) * page, (address + num_bytes) // page * page
    if end > begin:
        libc.madvise(ctypes.c_void_p(begin), ctypes.c_size_t(end - begin), _MADV_DONTNEED)


def _glibc() -> ctypes.CDLL | None:
    try:
        libc = ctypes.CDLL("libc.so.6")
        return libc if hasattr(libc, "malloc_trim") and hasattr(libc, "mallopt") else None
    except OSError:
        return None

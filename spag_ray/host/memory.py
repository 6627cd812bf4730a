"""Memory settings of a process with large tensors. glibc only; does nothing with other C libraries."""

from __future__ import annotations

import ctypes
import os

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # names of <malloc.h>
_MADV_DONTNEED = 4  # of <sys/mman.h>


def keep_freed_memory() -> None:
    """Reuse freed tensors' memory instead of returning it to the system: the kernel clears every page of a new mapping,
    which took a seventh of a learner's time. `release_freed_memory` returns it on request."""
    libc = _glibc()
    if libc is not None:
        libc.mallopt(_MMAP_MAX, 0)
        libc.mallopt(_TRIM_THRESHOLD, -1)
        libc.mallopt(_TOP_PAD, 256 * 2**20)


def release_freed_memory() -> None:
    """Return free memory to the system; after batches of changing size often gigabytes. Takes about 20 ms."""
    libc = _glibc()
    if libc is not None:
        libc.malloc_trim(0)


def drop_contents(address: int, num_bytes: int) -> None:
    """Return the whole pages of [address, address + num_bytes) to the system. They then read as zeros; the range stays
    mapped and is filled again when written. For private memory whose contents are no longer needed."""
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

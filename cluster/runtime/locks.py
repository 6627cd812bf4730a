"""Locks that threads can only take in one order, so that no two wait for each other.

    updating = RankedLock("updating", rank=1)
    records = RankedLock("records", rank=3, may_wait=False)

A thread that holds a lock may take one of a higher rank, or the same again; any other order is an AssertionError at
once, in every run, and not a hang in one of many. Who holds a lock with `may_wait=False` may not wait for another
process: `check_may_wait` is called by what does (ray_session.get, direct_channel.gather).
"""

from __future__ import annotations

import threading


class _Held(threading.local):
    """The locks that this thread holds, in the order in which it took them."""

    def __init__(self) -> None:
        self.locks: list[RankedLock] = []


_held = _Held()


class RankedLock:
    """Reentrant. `rank`: the place in the order; `may_wait`: whether its holder may wait for other processes."""

    def __init__(self, name: str, rank: int, may_wait: bool = True) -> None:
        self.name = name
        self.rank = rank
        self.may_wait = may_wait
        self._lock = threading.RLock()

    def __enter__(self) -> None:
        above = [each.name for each in _held.locks if each.rank >= self.rank and each is not self]
        assert not above or self in _held.locks, f"{self.name} is taken while {', '.join(above)} is held"
        self._lock.acquire()
        _held.locks.append(self)

    def __exit__(self, *_: object) -> None:
        _held.locks.remove(self)
        self._lock.release()


def check_may_wait() -> None:
    """Raises AssertionError if this thread holds a lock under which nothing may be waited for."""
    held = [each.name for each in _held.locks if not each.may_wait]
    assert not held, f"a thread waits for another process while it holds {', '.join(held)}"

"""Locks that are taken in one order, and under which nothing is waited for."""

import threading

import pytest

from cluster.runtime.locks import RankedLock, check_may_wait
from cluster.runtime.ray_session import get


def test_locks_are_taken_in_one_order_and_again_by_who_has_them() -> None:
    first, second = RankedLock("first", 1), RankedLock("second", 2)
    with first, second, first:
        pass
    with second, pytest.raises(AssertionError, match="first is taken while second is held"):
        first.__enter__()
    with first:
        pass


def test_two_locks_of_one_rank_are_never_held_together() -> None:
    one, other = RankedLock("one", 1), RankedLock("other", 1)
    with one, pytest.raises(AssertionError, match="other is taken while one is held"):
        other.__enter__()


def test_another_thread_waits_for_the_lock_and_its_own_order_counts() -> None:
    first, second = RankedLock("first", 1), RankedLock("second", 2)
    taken = threading.Event()

    def take() -> None:
        with first:
            taken.set()

    with second:
        thread = threading.Thread(target=take)
        thread.start()
        assert taken.wait(5), "this thread holds only the second"
    thread.join(5)


def test_nobody_waits_for_another_process_under_a_lock_that_forbids_it() -> None:
    calls: list[object] = []
    records, updating = RankedLock("records", 2, may_wait=False), RankedLock("updating", 1)
    with records, pytest.raises(AssertionError, match="waits for another process while it holds records"):
        get(calls)  # type: ignore[arg-type]
    with updating:
        check_may_wait()

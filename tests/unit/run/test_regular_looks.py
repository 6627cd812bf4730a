"""A thread that looks again and again."""

from __future__ import annotations

import threading

import pytest

from cluster.elastic.regular_looks import RegularLooks


def test_all_looks_are_called_again_and_again_until_the_end() -> None:
    counts, enough = [0, 0], threading.Event()

    def look() -> None:
        counts[0] += 1

    def other() -> None:
        counts[1] += 1
        if counts[1] == 3:
            enough.set()

    looks = RegularLooks([look, other], 0.01)
    looks.start()
    assert enough.wait(5)
    looks.stop()
    looks.check()
    before = list(counts)
    assert before[0] - before[1] in (0, 1)
    assert not enough.wait(0.05) or counts == before


def test_an_error_is_raised_by_the_next_check() -> None:
    looked = threading.Event()

    def look() -> None:
        looked.set()
        raise ValueError("no such node")

    looks = RegularLooks([look], 0.0)
    looks.start()
    assert looked.wait(5)
    looks._thread.join(5)
    with pytest.raises(ValueError, match="no such node"):
        looks.check()


def test_looks_that_were_not_started_can_be_stopped() -> None:
    RegularLooks([], 1.0).stop()

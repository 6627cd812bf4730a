"""SIGTERM and Ctrl-C as a request to stop."""

import signal
import threading

import pytest

from cluster.runtime.stop_notice import notice_to_stop


def test_a_first_signal_is_a_notice_and_a_ctrl_c_after_it_ends_the_block() -> None:
    before = signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)
    with notice_to_stop() as notice:
        signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert len(notice) == 2
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
    assert (signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGINT)) == before


def test_a_signal_that_is_ignored_stays_so() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with notice_to_stop() as notice:
            signal.raise_signal(signal.SIGINT)
            assert notice == []
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_gets_no_notice_and_no_error() -> None:
    found: list[list[float]] = []

    def ask() -> None:
        with notice_to_stop() as notice:
            found.append(notice)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [[]]

"""SIGTERM and Ctrl-C as a request to stop. Spot machines and `ray job stop` send SIGTERM.

with notice_to_stop() as notice:
    while working and not notice:
        ...
"""

from __future__ import annotations

import contextlib
import signal
import threading
import time
from collections.abc import Iterator


@contextlib.contextmanager
def notice_to_stop() -> Iterator[list[float]]:
    """During the block, SIGTERM and a first Ctrl-C only request a stop, and its time (time.monotonic) is in the list;
    the next Ctrl-C raises KeyboardInterrupt. Outside the main thread, which alone gets signals, nothing changes."""
    notice: list[float] = []
    if threading.current_thread() is not threading.main_thread():
        yield notice
        return

    def noticed(number: int, _: object) -> None:
        if notice and number == signal.SIGINT:
            raise KeyboardInterrupt
        notice.append(time.monotonic())

    # A signal that is ignored, as by a job in a script's background, stays so.
    heeded = [each for each in (signal.SIGTERM, signal.SIGINT) if signal.getsignal(each) is not signal.SIG_IGN]
    before = {number: signal.signal(number, noticed) for number in heeded}
    try:
        yield notice
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)

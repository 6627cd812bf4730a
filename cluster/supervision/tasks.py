"""Threads that a run does work in. An error in one of them ends the run, at its next `check`."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

JOIN_WITHIN_S = 5.0


class Tasks:
    """`is_stopped`: the run ends; whatever happens in a thread from then on is no error."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._failure: BaseException | None = None

    def start(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Run `work` in a thread."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                if not self.is_stopped:
                    self._failure = self._failure or error

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
            thread.start()
        return thread

    def every(self, seconds: float, work: Callable[[], None], name: str) -> None:
        """Do `work` again and again in a thread, until the tasks are stopped or the work fails."""

        def repeat() -> None:
            while not self._stopped.wait(seconds):
                work()

        self.start(name, repeat)

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def check(self) -> None:
        """Raises the first error of a thread, if any."""
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._stopped.set()
        deadline = time.monotonic() + JOIN_WITHIN_S
        for thread in list(self._threads):
            if thread is not threading.current_thread():
                thread.join(timeout=max(0.0, deadline - time.monotonic()))

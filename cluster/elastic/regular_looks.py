"""A thread that calls functions again and again while a run lasts, also while its loop is busy."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class RegularLooks:
    """`looks` are called every `every_s` seconds until `stop`. The first error ends the thread; `check` raises it."""

    def __init__(self, looks: Sequence[Callable[[], None]], every_s: float) -> None:
        self._looks = looks
        self._every_s = every_s
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="regular-looks", daemon=True)
        self._failure: BaseException | None = None

    def start(self) -> None:
        self._thread.start()

    def check(self) -> None:
        if self._failure is not None:
            raise self._failure

    def stop(self) -> None:
        self._stopped.set()
        if self._thread.is_alive():
            self._thread.join(timeout=5)

    def _run(self) -> None:
        try:
            while not self._stopped.wait(self._every_s):
                for look in self._looks:
                    look()
        except BaseException as error:
            if not self._stopped.is_set():
                self._failure = error

"""Where the time of an iteration goes: a round of games and the training on it, or a version of a stream.

>>> clock = iter((0.0, 1.0, 3.0, 4.0, 6.0, 7.0, 8.0))
>>> split = TimeSplit(lambda: next(clock))
>>> split.restart()
>>> with split.phase("train"):
...     with split.phase("score"):
...         pass
>>> split.taken()
(7.0, {'train': 2.0, 'score': 2.0})
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from spag_ray.results.lines import Phase

OF_LEARNER: tuple[Phase, ...] = ("score", "train", "sync", "checkpoint")  # in the others the learner has nothing to do


class TimeSplit:
    """What the loop (run/training.py) waits for. It waits for one thing at a time, so phases do not overlap, also where
    engines play meanwhile; a phase inside another one takes its time from that. For the loop's thread alone."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._open: list[Phase] = []
        self.restart()

    def restart(self) -> None:
        """An iteration begins."""
        self._began = self._since = self._clock()
        self._seconds: dict[Phase, float] = {}

    @contextmanager
    def phase(self, name: Phase) -> Iterator[None]:
        """In this block the loop waits for `name`."""
        self._count()
        self._open.append(name)
        self._seconds.setdefault(name, 0.0)
        try:
            yield
        finally:
            self._count()
            self._open.pop()

    def taken(self) -> tuple[float, dict[Phase, float]]:
        """(seconds since the iteration began, {phase: its seconds}). Phases that did not occur are left out."""
        self._count()
        return self._since - self._began, dict(self._seconds)

    def _count(self) -> None:
        """The time since the last change belongs to the innermost phase."""
        now = self._clock()
        if self._open:
            self._seconds[self._open[-1]] = self._seconds.get(self._open[-1], 0.0) + now - self._since
        self._since = now

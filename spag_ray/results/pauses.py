"""When a run ran, found in the lines of its metrics.jsonl: from its first line to its newest one, without pauses."""

from __future__ import annotations

from collections.abc import Iterable

from spag_ray.results.lines import EngineStateLine, Line, ResumedLine, SetAsideLine

LONGEST_SILENCE_S = 300.0  # a longer gap before a resume counts as a pause
_OF_ENGINES = ("engine_state", "engine_joined", "engine_lost", "engine_left")
_OF_A_START = (*_OF_ENGINES, "restart", "buffer", "log_damage")


class Clock:
    """`take` gets every line in the order of the file. `began`, `ended`: when the first and the newest of `num_lines`
    were written, in seconds since the epoch. `pauses`: (from, to) of times in which the run did not run.

    A resumed run starts its engines before it writes that it was resumed. So a silence that a new engine ended is a
    pause, unless other work follows before a resume does: then it is taken back."""

    def __init__(self, lines: Iterable[tuple[float, Line | None]] = ()) -> None:
        self.num_lines = 0
        self.began = self.ended = 0.0
        self.pauses: list[tuple[float, float]] = []
        self._last_kind = ""
        # Of the last pauses those that no resume has confirmed: a start may fail, and be tried again.
        self._num_open = 0
        for time, line in lines:
            self.take(time, line)

    @property
    def paused_s(self) -> float:
        return sum(end - begin for begin, end in self.pauses)

    @property
    def seconds(self) -> float:
        return self.running(self.ended)

    def running(self, time: float) -> float:
        """How long the run had run at `time`, in seconds, without pauses."""
        paused = sum(max(0.0, min(time, end) - begin) for begin, end in self.pauses)
        return max(0.0, min(time, self.ended) - self.began - paused)

    def take(self, time: float, line: Line | None) -> None:
        """`line`: None for one of an unknown kind."""
        if not self.num_lines:
            self.began = self.ended = time
        self.num_lines += 1
        kind = "" if line is None else line.kind
        is_resumed = isinstance(line, ResumedLine | SetAsideLine)
        if time - self.ended > LONGEST_SILENCE_S:
            # Between a start, or a restart of learners, and the resume the run loads models: it runs.
            is_bare = is_resumed and self._last_kind not in (*_OF_ENGINES, "restart")
            is_start = isinstance(line, EngineStateLine) and not line.before
            if is_bare or is_start:
                self.pauses.append((self.ended, time))
                self._num_open += is_start
        if is_resumed:
            self._num_open = 0
        elif self._num_open and kind not in _OF_A_START:
            del self.pauses[-self._num_open :]
            self._num_open = 0
        self.ended = max(self.ended, time)
        self._last_kind = kind

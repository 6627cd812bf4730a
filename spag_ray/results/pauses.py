"""Times in which a run did not run, found in the lines of its metrics.jsonl."""

from __future__ import annotations

from spag_ray.results.lines import EngineStateLine, Line, ResumedLine, SetAsideLine

LONGEST_SILENCE_S = 300.0  # a longer gap before a resume counts as a pause
_OF_ENGINES = ("engine_state", "engine_joined", "engine_lost", "engine_left")
_OF_A_START = (*_OF_ENGINES, "restart", "buffer", "log_damage")


class Pauses:
    """`take` gets every line in the order of the file. `found`: (from, to) of each pause, in seconds since the epoch.

    A resumed run starts its engines before it writes that it was resumed. So a silence that a new engine ended is a
    pause, unless other work follows before a resume does: then it is taken back."""

    def __init__(self) -> None:
        self.found: list[tuple[float, float]] = []
        self._newest: float | None = None
        self._last_kind = ""
        # Of the last pauses those that no resume has confirmed: a start may fail, and be tried again.
        self._num_open = 0

    @property
    def seconds(self) -> float:
        return sum(end - begin for begin, end in self.found)

    def take(self, time: float, line: Line | None) -> None:
        """`line`: None for one of an unknown kind."""
        kind = "" if line is None else line.kind
        is_resumed = isinstance(line, ResumedLine | SetAsideLine)
        if self._newest is not None and time - self._newest > LONGEST_SILENCE_S:
            # Between a start, or a restart of learners, and the resume the run loads models: it runs.
            is_bare = is_resumed and self._last_kind not in (*_OF_ENGINES, "restart")
            is_start = isinstance(line, EngineStateLine) and not line.before
            if is_bare or is_start:
                self.found.append((self._newest, time))
                self._num_open += is_start
        if is_resumed:
            self._num_open = 0
        elif self._num_open and kind not in _OF_A_START:
            del self.found[-self._num_open :]
            self._num_open = 0
        self._newest = time if self._newest is None else max(self._newest, time)
        self._last_kind = kind

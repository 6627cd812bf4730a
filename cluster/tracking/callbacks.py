"""A user's own classes that are told what a run does (`tracking.callbacks`).

    class MyCallback:                                        # in mine.py; any of these methods, no base class
        def on_stage_began(self, stage): ...                 "imitated", "spag-1"
        def on_games(self, stage, episodes): ...             what was played, as Episode objects
        def on_step(self, stage, policy, report): ...        StepReport of an optimiser step
        def on_version(self, policy, version): ...           engines have these weights
        def on_stage_ended(self, stage, models): ...         {policy: the folder of its saved model}

They are made in the process of the Run when training starts, without arguments, and called one after the other by a
thread of their own, so the run waits for them only at its end. A method that raises three times in a row is not called
any more. A stage that is restarted, after a resume or because learners were lost, is told again.
"""

from __future__ import annotations

import difflib
import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spag_ray.episodes.episode import Episode
from spag_ray.errors import ConfigError
from spag_ray.games.registry import own_function
from spag_ray.results.lines import Line, StepLine, SyncLine

HOOKS = ("on_stage_began", "on_games", "on_step", "on_version", "on_stage_ended")
MAX_FAILURES = 3  # in a row
MAX_WAITING = 256  # calls; what comes while so many wait is left out
END_WITHIN_S, FAILED_WITHIN_S = 60.0, 5.0  # for the calls that wait when the run ends, or fails or is stopped
_KEY = "tracking.callbacks"
_NEAR = 0.8  # difflib's likeness of a misspelt method
_MAX_TEXT = 200  # characters of an error in a note
_log = logging.getLogger(__name__)


def check_callbacks(names: Sequence[str]) -> None:
    """Raises ConfigError for a class that is not there or has no hook, for one that is named twice, and for a method
    whose name is nearly that of a hook."""
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{_KEY}: {name} is named twice")
        _class_of(name)


def _class_of(name: str) -> Callable[[], Any]:
    found = own_function(name, _KEY)
    for each in dir(found):
        near = difflib.get_close_matches(each, HOOKS, 1, _NEAR) if each.startswith("on_") and each not in HOOKS else []
        if near:
            raise ConfigError(f"{_KEY}: {name}: {each} is never called; did you mean `{near[0]}`?")
    if not any(callable(getattr(found, hook, None)) for hook in HOOKS):
        raise ConfigError(f"{_KEY}: {name} has no method that is called; there are {', '.join(HOOKS)}")
    return found


class Callbacks:
    """Those of a run. Its methods may be called by any thread and do not wait. `note`: tells a user of failures."""

    def __init__(self, names: Sequence[str], note: Callable[[str], None]) -> None:
        self._names = names
        self._note = note
        self._objects: dict[str, Any] = {}
        self._failures: dict[tuple[str, str], int] = {}
        self._stage: str | None = None
        self._num_left_out = 0
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(MAX_WAITING)

    def start(self) -> None:
        """Until then nothing is told. Raises ConfigError for a class that cannot be found or made."""
        check_callbacks(self._names)
        self._objects = {name: _made(name) for name in self._names}
        if self._names:
            threading.Thread(target=self._work, name="callbacks", daemon=True).start()

    def stage_began(self, stage: str) -> None:
        """Told once, however often this is called in a row."""
        if stage != self._stage:
            self._stage = stage
            self._call("on_stage_began", stage)

    def begins_again(self) -> None:
        """The stage under way will be begun anew."""
        self._stage = None

    def games_came(self, episodes: Sequence[Episode]) -> None:
        if episodes:
            self._call("on_games", episodes[0].stage, tuple(episodes))

    def hear(self, line: Line) -> None:
        """A line of metrics.jsonl: steps and versions are told from it."""
        if isinstance(line, StepLine):
            self._call("on_step", line.stage, line.policy, line.report)
        elif isinstance(line, SyncLine):
            self._call("on_version", line.policy, line.report.version)

    def stage_ended(self, stage: str, models: Mapping[str, str]) -> None:
        self._call("on_stage_ended", stage, dict(models))

    def end(self, within_s: float = END_WITHIN_S) -> None:
        """Wait for the calls that are left."""
        until = time.monotonic() + within_s
        while self._calls.unfinished_tasks and time.monotonic() < until:
            time.sleep(0.05)
        if self._calls.unfinished_tasks:
            self._note(f"callbacks had not ended {within_s:.0f} s after the run and were left")

    def _call(self, hook: str, *arguments: Any) -> None:
        if not self._objects:
            return
        try:
            self._calls.put_nowait((hook, arguments))
        except queue.Full:
            self._num_left_out += 1
            if self._num_left_out == 1:
                self._note(f"callbacks are too slow: {MAX_WAITING} calls wait, and further ones are left out")

    def _work(self) -> None:
        while True:
            hook, arguments = self._calls.get()
            for name, each in self._objects.items():
                if self._failures.get((name, hook), 0) < MAX_FAILURES:
                    self._try(name, each, hook, arguments)
            self._calls.task_done()

    def _try(self, name: str, each: Any, hook: str, arguments: tuple[Any, ...]) -> None:
        """Whatever it raises, SystemExit too: the thread serves the others."""
        try:
            if (method := getattr(each, hook, None)) is not None:
                method(*arguments)
            self._failures[name, hook] = 0
        except BaseException as error:
            number = self._failures[name, hook] = self._failures.get((name, hook), 0) + 1
            _log.error("callback %s: %s", name, hook, exc_info=error)
            if number in (1, MAX_FAILURES):
                last = "; that was the third time in a row, so it is not called any more" if number > 1 else ""
                self._note(f"callback {name}: {hook}: {_told(error)}{last}")


def _told(error: BaseException) -> str:
    try:
        return f"{type(error).__name__}: {error}"[:_MAX_TEXT]
    except Exception:  # its text cannot be made
        return type(error).__name__


def _made(name: str) -> Any:
    found = _class_of(name)
    try:
        return found()
    except (Exception, SystemExit) as error:
        raise ConfigError(f"{_KEY}: {name} cannot be made without arguments ({_told(error)})") from error

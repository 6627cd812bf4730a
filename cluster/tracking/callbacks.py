"""A user's own classes that are told what a run does (`tracking.callbacks`).

    class MyCallback:                                        # in mine.py; any of these methods, no base class
        def on_stage_began(self, stage): ...                 "imitated", "spag-1"
        def on_games(self, stage, episodes): ...             what was played, as Episode objects
        def on_step(self, stage, policy, report): ...        StepReport of an optimiser step
        def on_version(self, policy, version): ...           engines have these weights
        def on_stage_ended(self, stage, models): ...         {policy: the folder of its saved model}

They are made in the process of the Run, without arguments, and called one after the other by a thread of their own, so
the run waits for them only at its end. One that raises three times in a row is not called any more. A run that resumes
begins its stage again.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spag_ray.episodes.episode import Episode
from spag_ray.errors import ConfigError, meant
from spag_ray.games.registry import own_function
from spag_ray.results.lines import Line, StepLine, SyncLine

HOOKS = ("on_stage_began", "on_games", "on_step", "on_version", "on_stage_ended")
MAX_FAILURES = 3  # in a row
MAX_WAITING = 256  # calls; what comes while so many wait is left out
END_WITHIN_S = 60.0  # for the calls that wait when the run ends
_KEY = "tracking.callbacks"
_log = logging.getLogger(__name__)


def callback_class(name: str) -> Callable[[], Any]:
    """The class of this name. Raises ConfigError for one that is not there or has no hook, and for a hook that is
    misspelt."""
    found = own_function(name, _KEY)
    hooks = [each for each in dir(found) if each.startswith("on_")]
    for hook in hooks:
        if hook not in HOOKS:
            raise ConfigError(
                f"{_KEY}: {name}: {hook} is never called{meant(hook, HOOKS)}; there are {', '.join(HOOKS)}"
            )
    if not hooks:
        raise ConfigError(f"{_KEY}: {name} has no method that is called; there are {', '.join(HOOKS)}")
    return found


class Callbacks:
    """Those of a run. Its methods may be called by any thread and do not wait. `note`: tells a user of failures."""

    def __init__(self, names: Sequence[str], note: Callable[[str], None]) -> None:
        """Raises ConfigError for a class that cannot be found or made."""
        self._note = note
        self._objects = {name: _made(name) for name in names}
        self._failures = dict.fromkeys(names, 0)
        self._stage: str | None = None
        self._num_left_out = 0
        self._calls: queue.Queue[tuple[str, tuple[Any, ...]]] = queue.Queue(MAX_WAITING)
        if names:
            threading.Thread(target=self._work, name="callbacks", daemon=True).start()

    def stage_began(self, stage: str) -> None:
        """Told once, however often this is called in a row."""
        if stage != self._stage:
            self._stage = stage
            self._call("on_stage_began", stage)

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
            for name, each in list(self._objects.items()):
                if (method := getattr(each, hook, None)) is not None and self._failures[name] < MAX_FAILURES:
                    self._try(name, method, arguments)
            self._calls.task_done()

    def _try(self, name: str, method: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        try:
            method(*arguments)
        except Exception as error:
            self._failures[name] += 1
            _log.exception("callback %s: %s", name, method.__name__)
            is_last = self._failures[name] == MAX_FAILURES
            told = f"; that was the third time in a row, so {name} is not called any more" if is_last else ""
            self._note(f"callback {name}: {method.__name__}: {type(error).__name__}: {error}{told}")
        else:
            self._failures[name] = 0


def _made(name: str) -> Any:
    made = callback_class(name)
    try:
        return made()
    except Exception as error:
        raise ConfigError(
            f"{_KEY}: {name} cannot be made without arguments ({type(error).__name__}: {error})"
        ) from error

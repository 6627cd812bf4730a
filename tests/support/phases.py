"""A Run that stops one of its processes at the beginning of a phase, once: SIGSTOP, so that it answers nothing.

The Run that hosts the phases is in another process than the test: what to do is in FILE of the run's folder.
"""

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import psutil

from cluster.run.run import Run

FILE = "phase.json"  # {"phase": ..., "kind": ...}
HAPPENED = "phase.happened.json"
KINDS = ("EngineActor", "LearnerActor", "BufferActor", "ArenaActor")

# {phase: (the part of the Run, its method, the call of it that begins the phase)}
PHASES = {
    "start": ("_trainer", "start", 1),
    "restore": ("_recovery", "restore", 2),  # the second one: a learner is killed before it
    "open": ("_trainer", "streaming", 1),
    "publish": ("_parts.publisher", "publish", 2),
    "checkpoint": ("_recovery", "checkpoint", 2),
    "evaluate": ("_parts.matches", "play", 1),
    "end": ("_trainer", "end_learning", 1),
}


class RunWithPhases(Run):
    """See above."""

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        found = json.loads((self._folder / FILE).read_text(encoding="utf-8"))
        part, method, which = PHASES[found["phase"]]
        self._before(part, method, which, partial(self._stop, found["kind"]))
        if found["phase"] == "restore":
            self._before("_parts.publisher", "publish", 2, lambda: _signal("LearnerActor", signal.SIGKILL))

    def _before(self, part: str, method: str, which: int, act: Callable[[], object]) -> None:
        """Do something before the n-th call of a part's method."""
        target, calls = attrgetter(part)(self), iter(range(1, 10**6))
        original = getattr(target, method)

        def call(*arguments: Any, **options: Any) -> Any:
            if next(calls) == which:
                act()
            return original(*arguments, **options)

        setattr(target, method, call)

    def _stop(self, kind: str) -> None:
        """Stop a process of this kind: now, or as soon as there is one."""

        def stop() -> None:
            while not _signal(kind, signal.SIGSTOP):
                time.sleep(0.05)
            self._folder.joinpath(HAPPENED).write_text(json.dumps({"at": time.time()}), encoding="utf-8")

        thread = threading.Thread(target=stop, daemon=True)
        thread.start()
        thread.join(0.0 if kind in ("EngineActor", "LearnerActor") else 5.0)
        thread.join(1.0)


def _signal(kind: str, number: int) -> bool:
    """Send a signal to one process of this Run's Ray with the title of an actor; False if there is none."""
    raylet = psutil.Process().parent()
    for process in raylet.children() if raylet is not None else []:
        try:
            title = (process.cmdline() or [""])[0]
        except psutil.Error:
            continue
        if title == f"ray::{kind}" or title.startswith(f"ray::{kind}."):
            os.kill(process.pid, number)
            return True
    return False


def write_phase(folder: Path, phase: str, kind: str) -> None:
    (folder / FILE).write_text(json.dumps({"phase": phase, "kind": kind}), encoding="utf-8")


def happened_at(folder: Path) -> float:
    """When the process was stopped. Raises FileNotFoundError if it was not."""
    return float(json.loads((folder / HAPPENED).read_text(encoding="utf-8"))["at"])

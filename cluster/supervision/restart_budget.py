"""Counts and limits restarts. How each kind of failure is found, and where the restart resumes:

    engine    found by its heartbeat (fleet/heartbeats.py): dead, silent, or with turns to answer and none answered.
              A new one loads the newest published weights, then plays; other engines play the lost turns.
              An engine that starts has a heartbeat too, on a thread that loading a model does not hold up.
    arena     found by its unfinished call, or killed for its silence (actor_watch.py); a new one plays the games that
              are not in the log.
    buffer    Ray restarts it, also when it was killed for its silence; it reads its log, cursor and leases.
    learner   found by its unfinished call or its deadline; the group restarts from the newest checkpoint.

All of it is bounded: more than `max_restarts` within `within_s` end the run, with the reasons. What was lost together,
as the engines of a node are, counts once. A wait for room is no restart.
"""

from __future__ import annotations

import math
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import ray

from cluster.runtime.ray_session import first_line
from cluster.tracking.recorder import Recorder
from spag_ray.config.parts import SupervisionConfig
from spag_ray.errors import SpagError
from spag_ray.results.lines import RestartLine

KILL_EXPLAINS_S = 60.0  # the end of an actor: so long a death may take to be found and counted

_OF_MEMORY = ("out of memory", "outofmemory", "running low on memory")  # the last are Ray's words


class TooManyRestartsError(SpagError):
    """More restarts than supervision.max_restarts allows."""


@dataclass(eq=False)
class Incident:
    """What ends several actors at once. `is_counted`: by one of them; it is changed under the budget's lock."""

    is_counted: bool = False


class RestartBudget:
    """Counts restarts; records and reports each with its cause. Call `poll` again and again."""

    def __init__(
        self, config: SupervisionConfig, recorder: Recorder, note: Callable[[str], None] = lambda text: None
    ) -> None:
        self._config = config
        self._recorder = recorder
        self._note = note
        self._recent: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()
        self._oom_kills = oom_kills()
        self._killed_at = -math.inf

    def poll(self) -> None:
        """Note when this machine's kernel kills for memory: most kills are of processes that are no part of the run."""
        with self._lock:
            self._look()

    def _look(self) -> None:
        before, self._oom_kills = self._oom_kills, oom_kills()
        if self._oom_kills > before:
            self._killed_at = time.monotonic()

    def count(self, what: str, error: BaseException | str, incident: Incident | None = None) -> None:
        """Call before `what` is restarted; with the same `incident` for all that were lost together. Raises
        TooManyRestartsError if there were too many restarts."""
        with self._lock:
            cause = self._cause(error)
        reason = first_line(error)
        self._recorder.record(RestartLine(what, cause, reason))
        self._note(f"{what} is restarted ({cause}): {reason}")
        now = time.monotonic()
        incident = incident or Incident()
        with self._lock:  # the threads of those that were lost together come here at the same time
            if incident.is_counted:
                return
            incident.is_counted = True
            self._recent.append((now, f"{what}: {cause}"))
            while self._recent and now - self._recent[0][0] > self._config.within_s:
                self._recent.popleft()
            if len(self._recent) > self._config.max_restarts:
                last = "; ".join(reason for _, reason in list(self._recent)[-3:])
                raise TooManyRestartsError(
                    f"{len(self._recent)} restarts within {self._config.within_s:g} s, supervision.max_restarts is "
                    f"{self._config.max_restarts}; the last: {last}; see the logs/ of the run folder"
                )

    def _cause(self, error: BaseException | str) -> str:
        """out of memory, stuck, or crash: judged by Ray's error, and for an actor of this machine by the kernel's count
        of OOM kills. The caller holds the lock."""
        self._look()
        text = str(error).lower()
        if isinstance(error, ray.exceptions.OutOfMemoryError) or any(each in text for each in _OF_MEMORY):
            return "out of memory"
        if time.monotonic() - self._killed_at <= KILL_EXPLAINS_S and _was_here(error):
            return "out of memory"
        is_late = isinstance(error, str) or isinstance(error.__cause__, ray.exceptions.GetTimeoutError)
        return "stuck" if is_late else "crash"


def _was_here(error: BaseException | str) -> bool:
    """Whether the actor that an error of Ray is about was on this machine: Ray's message has its node's address."""
    texts = f"{error}\n{error.__cause__ if isinstance(error, BaseException) else ''}"
    return re.search(rf"\bip[:=] ?{re.escape(ray.util.get_node_ip_address())}(?![\d.])", texts) is not None


def oom_kills() -> int:
    """Processes that this machine's kernel has killed for memory since boot; 0 if it does not report them."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)

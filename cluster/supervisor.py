"""Who died or hangs, what is begun again, from what.

    engine    found by its heartbeat: dead, or silent, or with turns to answer and none answered for too long.
              A new one takes the newest published weights, then plays; lost turns are asked of others meanwhile.
    arena     found by its unfinished call; a new one plays what the log has not got.
    buffer    Ray starts it again; it reads its log and its cursor (buffer.py).
    learner   found by its unfinished call or its deadline; the group begins again at the newest checkpoint.

All of it is bounded: more than `max_restarts` within `within_s` end the run, with the reasons.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from cluster.arena_actor import Engine
from cluster.metrics import Metrics
from spag_ray.config import SupervisionConfig
from spag_ray.errors import SpagError

if TYPE_CHECKING:
    from cluster.learning_policy import LearningPolicy

BEAT_S = 1.0


class TooManyRestartsError(SpagError):
    """What ran kept dying."""


@dataclass(eq=False)
class Placed:
    """An engine, and what another one needs to take its place: `learner` is the policy whose newest weights it plays;
    others play `model`, or the saved version (folder, version) that they were given last."""

    engine: Engine
    model: str
    policy: str
    learner: LearningPolicy | None = None
    saved: tuple[str, int] | None = None
    lives: int = 1


class Restarts:
    """Counts them, writes each down with its cause, and says it."""

    def __init__(
        self, config: SupervisionConfig, metrics: Metrics, note: Callable[[str], None] = lambda text: None
    ) -> None:
        self._config = config
        self._metrics = metrics
        self._note = note
        self._recent: deque[tuple[float, str]] = deque()
        self._lock = threading.Lock()
        self._oom_kills = oom_kills()

    def count(self, what: str, error: BaseException | str) -> None:
        """`what` is about to be begun again. Raises TooManyRestartsError when that happened too often."""
        cause = self._cause(error)
        reason = _first_line(error)
        self._metrics.record("restart", what=what, cause=cause, reason=reason)
        self._note(f"{what} is begun again ({cause}): {reason}")
        now = time.monotonic()
        with self._lock:
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
        """out of memory, stuck, or crash: by what Ray says, and by the kernel's count of processes it has killed."""
        before, self._oom_kills = self._oom_kills, oom_kills()
        text = str(error).lower()
        if isinstance(error, ray.exceptions.OutOfMemoryError) or "out of memory" in text or "outofmemory" in text:
            return "out of memory"
        if self._oom_kills > before:
            return "out of memory"
        is_late = isinstance(error, str) or isinstance(error.__cause__, ray.exceptions.GetTimeoutError)
        return "stuck" if is_late else "crash"


class EngineWatch:
    """A thread that looks at every engine's heartbeat and has those replaced that are dead or stuck."""

    def __init__(self, config: SupervisionConfig, replace: Any) -> None:
        self._config = config
        self._replace = replace
        self._placed: list[Placed] = []
        self._beats: dict[Placed, tuple[ray.ObjectRef, float]] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.failure: BaseException | None = None

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name="engine-watch", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(timeout=5)

    def watch(self, placed: Placed) -> None:
        with self._lock:
            self._placed.append(placed)

    def forget(self, engine: Engine) -> None:
        with self._lock:
            self._placed = [placed for placed in self._placed if placed.engine is not engine]

    def check(self) -> None:
        """Raises what the watch could not mend."""
        if self.failure is not None:
            raise self.failure

    def _run(self) -> None:
        while not self._stopped.wait(BEAT_S):
            with self._lock:
                placed = list(self._placed)
            for each in placed:
                try:
                    if (fault := self._look(each)) is not None and not self._stopped.is_set():
                        self._beats.pop(each, None)
                        self._replace(each, fault)
                except BaseException as error:
                    if self._stopped.is_set():
                        return
                    self.failure = error
                    return

    def _look(self, placed: Placed) -> BaseException | str | None:
        """What is wrong with an engine, if anything."""
        if placed not in self._beats:
            self._beats[placed] = placed.engine.handle.heartbeat.remote(), time.monotonic()
            return None
        beat, asked = self._beats[placed]
        if not ray.wait([beat], timeout=0)[0]:
            if time.monotonic() - asked > self._config.heartbeat_timeout_s:
                return f"{placed.engine.name} has not answered a heartbeat for {self._config.heartbeat_timeout_s:g} s"
            return None
        del self._beats[placed]
        try:
            num_pending, idle_s = ray.get(beat)
        except ray.exceptions.RayError as error:
            return error
        if num_pending and idle_s > self._config.engine_stall_s:
            return f"{placed.engine.name} has {num_pending} turns to answer and has answered none for {idle_s:.0f} s"
        return None


def oom_kills() -> int:
    """Processes that this machine's kernel has killed for memory since it was started; 0 where it does not say."""
    try:
        lines = Path("/proc/vmstat").read_text(encoding="ascii").splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith("oom_kill ")), 0)


def _first_line(error: BaseException | str) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]

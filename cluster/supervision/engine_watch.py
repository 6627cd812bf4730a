"""Finds engines that are dead or hang.

One call waits at each engine, which holds it for HOLD_S before it answers. So an engine costs a call in HOLD_S; its
death still fails the call at once, and all calls are looked at together.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Set
from functools import partial
from typing import Generic, Protocol, TypeVar

import ray

from cluster.handles import Ref
from cluster.types import Engine
from spag_ray.config.parts import SupervisionConfig

BEAT_S = 1.0
HOLD_S = 10.0


class HasEngine(Protocol):
    """What is watched: an engine, and its owner's data about it."""

    engine: Engine


Watched = TypeVar("Watched", bound=HasEngine)


class EngineWatch(Generic[Watched]):
    """A thread that checks every engine's heartbeat. It passes dead or stuck engines to `replace`, each in a thread of
    its own, because a new engine takes minutes to start and the others must still be watched."""

    def __init__(self, config: SupervisionConfig, replace: Callable[[Watched, BaseException | str], None]) -> None:
        self._config = config
        self._replace = replace
        self._hold_s = min(HOLD_S, config.heartbeat_timeout_s / 4)
        self._placed: list[Watched] = []
        self._beats: dict[Watched, tuple[Ref[tuple[int, float]], float]] = {}
        self._num_pending: dict[Watched, int] = {}
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self.failure: BaseException | None = None

    def start(self) -> None:
        self.every(BEAT_S, self._beat, "engine-watch")

    def stop(self) -> None:
        """Replace no more engines; a replacement under way sees `is_stopped`."""
        self._stopped.set()
        deadline = time.monotonic() + 5
        for thread in list(self._threads):
            thread.join(timeout=max(0.0, deadline - time.monotonic()))

    @property
    def is_stopped(self) -> bool:
        return self._stopped.is_set()

    def watch(self, placed: Watched) -> None:
        with self._lock:
            self._placed.append(placed)

    def forget(self, engine: Engine) -> None:
        with self._lock:
            self._placed = [placed for placed in self._placed if placed.engine is not engine]

    def check(self) -> None:
        """Raises what the watch could not repair."""
        if self.failure is not None:
            raise self.failure

    def num_pending(self) -> dict[Watched, int]:
        """{engine: the turns that it had to answer at its last heartbeat}"""
        return dict(self._num_pending)

    def every(self, seconds: float, work: Callable[[], None], name: str) -> None:
        """Do `work` again and again in a thread, until the watch is stopped or the work fails, which ends the run."""

        def repeat() -> None:
            while not self._stopped.wait(seconds):
                work()

        self.in_thread(name, repeat)

    def _beat(self) -> None:
        with self._lock:
            placed = list(self._placed)
        before = self._beats
        self._beats = {each: before.get(each) or self._ask(each) for each in placed}
        self._num_pending = {each: count for each, count in self._num_pending.items() if each in self._beats}
        calls = [beat for beat, _ in self._beats.values()]
        answered = set(ray.wait(calls, num_returns=len(calls), timeout=0)[0]) if calls else set()
        for each in placed:
            if (fault := self._look(each, answered)) is not None and not self.is_stopped:
                self.forget(each.engine)
                self.in_thread(f"replace-{each.engine.name}", partial(self._replace, each, fault))

    def in_thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        """Run `work` in a thread. Its error ends the run (`check`), unless the watch is stopped."""

        def run() -> None:
            try:
                work()
            except BaseException as error:
                if not self.is_stopped:
                    self.failure = self.failure or error

        thread = threading.Thread(target=run, name=name, daemon=True)
        with self._lock:
            self._threads = [*(other for other in self._threads if other.is_alive()), thread]
            thread.start()
        return thread

    def _ask(self, placed: Watched) -> tuple[Ref[tuple[int, float]], float]:
        return placed.engine.handle.heartbeat.remote(self._hold_s), time.monotonic()

    def _look(self, placed: Watched, answered: Set[Ref[tuple[int, float]]]) -> BaseException | str | None:
        """What is wrong with an engine, if anything."""
        beat, asked = self._beats[placed]
        if beat not in answered:
            if time.monotonic() - asked > self._hold_s + self._config.heartbeat_timeout_s:
                return f"{placed.engine.name} has not answered a heartbeat for {self._config.heartbeat_timeout_s:g} s"
            return None
        try:
            self._num_pending[placed], idle_s = ray.get(beat)
        except ray.exceptions.RayError as error:
            return error
        if (num_pending := self._num_pending[placed]) and idle_s > self._config.engine_stall_s:
            return f"{placed.engine.name} has {num_pending} turns to answer and has answered none for {idle_s:.0f} s"
        self._beats[placed] = self._ask(placed)
        return None

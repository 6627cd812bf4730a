"""Finds arenas and a buffer that hang, and kills them. The code that waits for one then finds it dead and replaces it:

    arena     its unfinished calls fail; play starts another one (arenas.py)
    buffer    Ray restarts it and makes the unfinished calls again (buffer_actor.py)

Engines have heartbeats of their own (fleet/heartbeats.py).
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import Protocol, cast

import ray

from cluster.handles import ActorHandle, Ref, remote_method
from cluster.runtime.ray_session import ACTOR_LOST, is_unavailable
from cluster.supervision.tasks import Tasks

BEAT_S = 1.0
START_WITHIN_S = 60.0  # a process, and what it imports


class WatchedHandle(ActorHandle, Protocol):
    """The handle of an actor that answers while its event loop runs."""

    @remote_method
    def heartbeat(self) -> None: ...


class RestartedHandle(WatchedHandle, Protocol):
    """The handle of an actor that Ray restarts: `live` never returns."""

    @remote_method
    def live(self) -> None: ...


@dataclass(eq=False)
class _Watched:
    """`beat` is the pending heartbeat, called at `asked`. `is_up`: it has answered since its last start. `life` is a
    call that ends only with the process. It is needed because a heartbeat that is called after Ray has started a
    restart does not fail but waits for the new process: alone it could not tell a slow restart from a hang."""

    name: str
    handle: WatchedHandle
    is_restarted: bool
    is_up: bool = False
    beat: Ref[None] | None = None
    asked: float = 0.0
    life: Ref[None] | None = None

    def ask(self) -> None:
        if self.is_restarted and self.life is None:
            self.life = cast(RestartedHandle, self.handle).live.options(max_task_retries=0).remote()
        self.ask_again()
        self.asked = time.monotonic()

    def ask_again(self) -> None:
        """Replace a heartbeat that did not get through; the time since the first one counts."""
        self.beat = self.handle.heartbeat.options(max_task_retries=0).remote()


class ActorWatch:
    """A thread that calls every actor's heartbeat again and again; an actor without an answer for `timeout_s` hangs."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._watched: list[_Watched] = []
        self._killed: dict[str, str] = {}
        self._lock = threading.Lock()
        self._tasks = Tasks()
        self.stop = self._tasks.stop
        self.check = self._tasks.check  # raises the error that ended the watch, if any

    def start(self) -> None:
        self._tasks.every(BEAT_S, self._look, "actor-watch")

    def watch(self, name: str, handle: WatchedHandle, is_restarted: bool = False) -> None:
        """`is_restarted`: Ray restarts it when it dies. It then has a method `live` that never returns."""
        with self._lock:
            self._watched.append(_Watched(name, handle, is_restarted))

    def forget(self, name: str) -> None:
        with self._lock:
            self._watched = [each for each in self._watched if each.name != name]

    @property
    def answer_within_s(self) -> float:
        """A bound for calls to a watched actor that take no time themselves: it may hang twice, each time be found by
        its heartbeat, and be restarted."""
        return 2 * (self._timeout_s + self._start_within_s)

    @property
    def _start_within_s(self) -> float:
        return max(START_WITHIN_S, self._timeout_s)

    def reason(self, name: str) -> str | None:
        """Why this watch killed the actor, returned once; None if it did not."""
        return self._killed.pop(name, None)

    def _look(self) -> None:
        with self._lock:
            for each in list(self._watched):
                self._check(each)

    def _check(self, each: _Watched) -> None:
        if each.life is not None and ray.wait([each.life], timeout=0)[0]:
            with contextlib.suppress(*ACTOR_LOST):  # those who wait for it see that too
                ray.get(each.life)
            self._is_dead(each)
        if each.beat is None:
            each.ask()
            return
        limit_s = self._timeout_s if each.is_up else self._start_within_s
        if ray.wait([each.beat], timeout=0)[0]:
            try:
                ray.get(each.beat)
                each.is_up = True
                each.ask()
            except ACTOR_LOST as error:
                # Of an actor that Ray restarts, this is how its death is told.
                if each.is_restarted or not is_unavailable(error):
                    self._is_dead(each)  # those who wait for it see that too
                    return
                each.ask_again()
        if time.monotonic() - each.asked > limit_s:
            self._killed[each.name] = f"{each.name} has not answered a heartbeat for {limit_s:g} s"
            ray.kill(each.handle, no_restart=not each.is_restarted)
            self._is_dead(each)

    def _is_dead(self, each: _Watched) -> None:
        each.beat, each.life, each.is_up = None, None, False
        if not each.is_restarted:
            self._watched.remove(each)

"""The arenas of a run, called as one; an arena that dies or hangs is replaced, and every engine joins the new one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import ray

from cluster.handles import Ref
from cluster.rollout.arena_actor import ArenaActor, ArenaHandle
from cluster.runtime.ray_session import get
from cluster.supervision.actor_watch import ActorWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.types import Engine


class Arenas:
    """`count` arenas; `arguments` are ArenaActor's, after its name and the path of its log."""

    def __init__(
        self, run_name: str, log_folder: str, count: int, watch: ActorWatch, restarts: RestartBudget, *arguments: Any
    ) -> None:
        self._run_name = run_name
        self._log_folder = log_folder
        self._watch = watch
        self._restarts = restarts
        self._arguments = arguments
        self._engines: dict[Engine, str] = {}
        self._without_room: dict[str, tuple[str, str]] = {}  # engine -> (pool, policy)
        self._is_paused = False
        self._lives = [0] * count
        self.handles: list[ArenaHandle] = [self._start(index) for index in range(count)]

    def name(self, index: int) -> str:
        """The name of an arena in its calls to the buffer."""
        return f"arena-{index}" if self._lives[index] == 1 else f"arena-{index}.{self._lives[index]}"

    def join(self, engine: Engine, policy: str) -> None:
        self._engines[engine] = policy
        _wait_for([arena.join.remote(engine, policy) for arena in self.handles])

    def drop(self, engine: Engine) -> None:
        self._engines.pop(engine, None)
        _wait_for([arena.drop.remote(engine) for arena in self.handles])

    @contextlib.contextmanager
    def waiting_for_room(self, pool: str, policy: str, names: Sequence[str]) -> Iterator[None]:
        """While the block waits for room for these engines of a pool, the games' own wait for them does not count."""
        self._without_room |= dict.fromkeys(names, (pool, policy))
        for name in names:
            _wait_for([arena.wait_for_room.remote(pool, policy, name) for arena in self.handles])
        try:
            yield
        finally:
            for name in names:
                self._without_room.pop(name)
                _wait_for([arena.found_room.remote(pool, policy, name) for arena in self.handles])

    def drain(self, engine: Engine) -> None:
        """Give an engine no new game, and wait until it has none."""
        _wait_for([arena.drain.remote(engine) for arena in self.handles])

    def reopen(self, engine: Engine) -> None:
        _wait_for([arena.reopen.remote(engine) for arena in self.handles])

    def pause(self, is_paused: bool) -> None:
        """Start no game while paused; those under way are finished."""
        self._is_paused = is_paused
        _wait_for([(arena.pause if is_paused else arena.resume).remote() for arena in self.handles])

    def replace(self, index: int, name: str, error: BaseException) -> ArenaHandle:
        """Replace a dead arena; returns the handle of the new one. A stream and an evaluation in the same arena both
        call this: there is one replacement."""
        if self.name(index) != name:
            return self.handles[index]
        self._restarts.count(name, self._watch.reason(name) or error)
        self._watch.forget(name)
        ray.kill(self.handles[index])
        self.handles[index] = handle = self._start(index)
        if self._is_paused:
            _wait_for([handle.pause.remote()])
        for engine, policy in list(self._engines.items()):
            _wait_for([handle.join.remote(engine, policy)])
        for engine_name, seat in list(self._without_room.items()):
            _wait_for([handle.wait_for_room.remote(*seat, engine_name)])
        return handle

    def close(self) -> None:
        for index, handle in enumerate(self.handles):
            self._watch.forget(self.name(index))
            ray.kill(handle)
        self.handles = []

    def _start(self, index: int) -> ArenaHandle:
        self._lives[index] += 1
        name = self.name(index)
        actor = ray.remote(ArenaActor).options(name=f"{name}-{self._run_name}", num_cpus=0)
        handle: ArenaHandle = actor.remote(name, f"{self._log_folder}/{name}.log", *self._arguments)
        self._watch.watch(name, handle)
        return handle


def _wait_for(calls: Sequence[Ref[None]]) -> None:
    """Returns when these arenas have done it. One that is dead, or found to hang (actor_watch.py), is skipped: the code
    that waits for its games replaces it, and `replace` brings the new one up to date."""
    for call in calls:
        with contextlib.suppress(ray.exceptions.RayActorError):
            get(call)

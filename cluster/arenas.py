"""The arenas of a run, spoken to as one; one that dies is made again, and told of every engine."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ray

from cluster.arena_actor import ArenaActor, Engine
from cluster.runtime import get


class Arenas:
    """`count` arenas; `arguments` are ArenaActor's, after its name and the path of its log."""

    def __init__(self, run_name: str, log_folder: str, count: int, *arguments: Any) -> None:
        self._run_name = run_name
        self._log_folder = log_folder
        self._arguments = arguments
        self._engines: dict[Engine, str] = {}
        self._is_paused = False
        self._lives = [0] * count
        self.handles: list[Any] = [self._start(index) for index in range(count)]

    def name(self, index: int) -> str:
        """What an arena calls itself to the buffer."""
        return f"arena-{index}" if self._lives[index] == 1 else f"arena-{index}.{self._lives[index]}"

    def join(self, engine: Engine, policy: str) -> None:
        self._engines[engine] = policy
        self._all("join", engine, policy)

    def drop(self, engine: Engine) -> None:
        self._engines.pop(engine, None)
        self._all("drop", engine)

    def drain(self, engine: Engine) -> None:
        """Give an engine no new game, and wait until it has none."""
        self._all("drain", engine)

    def reopen(self, engine: Engine) -> None:
        self._all("reopen", engine)

    def pause(self, is_paused: bool) -> None:
        """Begin no game while it is; those under way are played to their end."""
        self._is_paused = is_paused
        self._all("pause" if is_paused else "resume")

    def restart(self, index: int) -> Any:
        """Another one in the place of one that is gone; returns its handle."""
        ray.kill(self.handles[index])
        self.handles[index] = self._start(index)
        if self._is_paused:
            get(self.handles[index].pause.remote())
        get([self.handles[index].join.remote(engine, policy) for engine, policy in list(self._engines.items())])
        return self.handles[index]

    def close(self) -> None:
        for handle in self.handles:
            ray.kill(handle)
        self.handles = []

    def _start(self, index: int) -> Any:
        self._lives[index] += 1
        name = self.name(index)
        actor = ray.remote(ArenaActor).options(name=f"{name}-{self._run_name}", num_cpus=0)
        return actor.remote(name, f"{self._log_folder}/{name}.log", *self._arguments)

    def _all(self, call: str, *arguments: Any) -> None:
        """Of every arena; one that is gone is told when it is there again."""
        refs: Sequence[ray.ObjectRef] = [getattr(handle, call).remote(*arguments) for handle in self.handles]
        for ref in refs:
            try:
                get(ref)
            except ray.exceptions.RayActorError:
                continue

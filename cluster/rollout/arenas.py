"""The arenas of a run, called as one: they share the engines of each pool (shards.py), and an arena that dies or hangs
is replaced."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import ray

from cluster.handles import Ref
from cluster.rollout.arena_actor import ArenaActor, ArenaHandle
from cluster.rollout.shards import shares
from cluster.runtime.ray_session import get
from cluster.supervision.actor_watch import ActorWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.types import Engine
from spag_ray.config.run import RunConfig


class Arenas:
    """`count` arenas; `arguments` are ArenaActor's, after its name and the path of its log. `game_within_s`: no game
    takes longer."""

    def __init__(
        self,
        run_name: str,
        log_folder: str,
        count: int,
        watch: ActorWatch,
        restarts: RestartBudget,
        *arguments: Any,
        game_within_s: float,
    ) -> None:
        self._run_name = run_name
        self._log_folder = log_folder
        self._watch = watch
        self._restarts = restarts
        self._arguments = arguments
        self._game_within_s = game_within_s
        self._lock = threading.RLock()  # so that calls are made in the order in which they were decided on
        self._engines: dict[str, dict[Engine, None]] = {}  # by pool, in the order in which they joined
        self._policies: dict[str, str] = {}  # {pool: what its engines play}
        self._draining: set[Engine] = set()
        self._told: list[dict[Engine, float]] = [{} for _ in range(count)]  # each arena's share of its engines
        self._without_room: dict[str, tuple[str, str]] = {}  # engine -> (pool, policy)
        self._is_paused = False
        self._lives = [0] * count
        self.handles: list[ArenaHandle] = [self._start(index) for index in range(count)]

    def name(self, index: int) -> str:
        """The name of an arena in its calls to the buffer."""
        return f"arena-{index}" if self._lives[index] == 1 else f"arena-{index}.{self._lives[index]}"

    def join(self, engines: Sequence[Engine], policy: str) -> None:
        """Add engines that play `policy` from now on, also in games under way. Those that have joined before stay."""
        with self._lock:
            for engine in engines:
                self._policies[engine.pool] = policy
                self._engines.setdefault(engine.pool, {})[engine] = None
            calls = [call for pool in {engine.pool for engine in engines} for call in self._share_out(pool)]
        self._wait_for(calls)

    def drop(self, engine: Engine) -> None:
        """Remove an engine that is dead or will be ended."""
        with self._lock:
            self._draining.discard(engine)
            self._engines.setdefault(engine.pool, {}).pop(engine, None)
            calls = [self.handles[index].drop.remote(engine) for index in self._arenas_of(engine)]
            for told in self._told:
                told.pop(engine, None)
            calls += self._share_out(engine.pool)
        self._wait_for(calls)

    @contextlib.contextmanager
    def waiting_for_room(self, pool: str, policy: str, names: Sequence[str]) -> Iterator[None]:
        """While the block waits for room for these engines of a pool, the games' own wait for them does not count."""
        self._without_room |= dict.fromkeys(names, (pool, policy))
        for name in names:
            self._wait_for([arena.wait_for_room.remote(pool, policy, name) for arena in self.handles])
        try:
            yield
        finally:
            for name in names:
                self._without_room.pop(name)
                self._wait_for([arena.found_room.remote(pool, policy, name) for arena in self.handles])

    def drain(self, engine: Engine) -> None:
        """Give an engine no new game, and wait until it has none."""
        with self._lock:
            self._draining.add(engine)
            calls = [self.handles[index].drain.remote(engine) for index in self._arenas_of(engine)]
        self._wait_for(calls, self._watch.answer_within_s + self._game_within_s)

    def reopen(self, engine: Engine) -> None:
        with self._lock:
            self._draining.discard(engine)
            calls = [self.handles[index].reopen.remote(engine) for index in self._arenas_of(engine)]
        self._wait_for(calls)

    def pause(self, is_paused: bool) -> None:
        """Start no game while paused; those under way are finished."""
        with self._lock:
            self._is_paused = is_paused
            calls = [(arena.pause if is_paused else arena.resume).remote() for arena in self.handles]
        self._wait_for(calls)

    def replace(self, index: int, name: str, error: BaseException) -> ArenaHandle:
        """Replace a dead arena; returns the handle of the new one. A stream and an evaluation in the same arena both
        call this: there is one replacement."""
        if self.name(index) != name:
            return self.handles[index]
        self._restarts.count(name, self._watch.reason(name) or error)
        self._watch.forget(name)
        ray.kill(self.handles[index])
        with self._lock:
            self.handles[index] = handle = self._start(index)
            self._told[index] = {}
            calls = [handle.pause.remote()] if self._is_paused else []
            calls += [call for pool in self._engines for call in self._share_out(pool)]
        self._wait_for(calls)
        for engine_name, seat in list(self._without_room.items()):
            self._wait_for([handle.wait_for_room.remote(*seat, engine_name)])
        return handle

    def stop(self, stage: str, plays: Mapping[Ref[int], int]) -> None:
        """Make arenas abandon their games of a stage: {unfinished call to play: the arena's index}. One that is dead is
        skipped; one that does not stop is killed, because its games are given out again."""
        stops = {self.handles[index].stop.remote(stage): index for index in plays.values()}
        calls: dict[Ref[Any], int] = {**stops, **plays}
        if calls:
            _, left = ray.wait(list(calls), num_returns=len(calls), timeout=self._watch.answer_within_s)
            for index in {calls[call] for call in left}:
                ray.kill(self.handles[index])

    def close(self) -> None:
        with self._lock:
            for index, handle in enumerate(self.handles):
                self._watch.forget(self.name(index))
                ray.kill(handle)
            self.handles, self._told = [], []

    def _wait_for(self, calls: Sequence[Ref[None]], timeout_s: float | None = None) -> None:
        """Returns when these arenas have done it. One that is dead, or found to hang (actor_watch.py), is skipped: the
        code that waits for its games replaces it, and `replace` brings the new one up to date. Raises NoAnswerError if
        one that lives takes longer than `timeout_s`; the default is for calls that take no time themselves."""
        for call in calls:
            with contextlib.suppress(ray.exceptions.RayActorError):
                get(call, timeout_s or self._watch.answer_within_s)

    def _arenas_of(self, engine: Engine) -> list[int]:
        """Those that know an engine: it plays for them, or has played and may not have left yet."""
        return [index for index, told in enumerate(self._told) if engine in told]

    def _share_out(self, pool: str) -> list[Ref[None]]:
        """Tell each arena what has changed in its shares of a pool's engines. The caller holds the lock."""
        engines, calls = list(self._engines[pool]), []
        for index, (handle, told) in enumerate(zip(self.handles, self._told, strict=True)):
            now = {engines[place]: share for place, share in shares(index, len(self._told), len(engines)).items()}
            now |= {engine: 0.0 for engine in told if engine.pool == pool and engine not in now}
            changed = [
                (engine, share, engine not in self._draining)
                for engine, share in now.items()
                if told.get(engine) != share
            ]
            if changed:
                told.update(now)
                calls.append(handle.share.remote(pool, self._policies[pool], changed))
        return calls

    def _start(self, index: int) -> ArenaHandle:
        self._lives[index] += 1
        name = self.name(index)
        actor = ray.remote(ArenaActor).options(name=f"{name}-{self._run_name}", num_cpus=0)
        handle: ArenaHandle = actor.remote(name, f"{self._log_folder}/{name}.log", *self._arguments)
        self._watch.watch(name, handle)
        return handle


def game_within_s(config: RunConfig) -> float:
    """No game takes longer."""
    return 2 * max(each.game.max_turns for each in config.each_game) * config.engine.longest_turn_s

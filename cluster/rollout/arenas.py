"""The arenas of a run, called as one: they share the engines of each pool, and an arena that dies or hangs is replaced.
Which engines there are is the Fleet's to say (`serve`); here is what each arena was told of them.

Engines lie on a line in the order in which they joined, and arenas cut it into pieces of the same length (`shares`):

    3 engines    |  0  |  1  |  2  |     arena 0: engine 0 and half of engine 1
    2 arenas     |   0    |   1    |     arena 1: half of engine 1, and engine 2

So every arena has an engine, every engine gets the same number of games, and with many engines nearly each belongs to
one arena: its turns travel together. An engine that joins or leaves moves each cut by less than one engine.

Every arena knows every engine. It asks one of which it has no share when its own fail a turn, or take no new games.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ray

from actors.arena import Rules
from cluster.buffer.buffer_actor import BufferHandle
from cluster.handles import Ref
from cluster.rollout.arena_actor import ArenaActor, ArenaHandle
from cluster.runtime.locks import RankedLock
from cluster.runtime.output_files import label_of
from cluster.runtime.ray_session import ACTOR_LOST, NoAnswerError, get, is_unavailable
from cluster.supervision.actor_watch import ActorWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.types import Engine
from spag_ray.config.run import RunConfig


@dataclass
class Members:
    """The engines of a pool, in the order in which they joined: (engine, whether it takes new games). `policy` is what
    they play. `leaving`: engines that finish their games and are no longer shared out. `wait_for_room`: whether one
    that is to come waits for room."""

    policy: str
    engines: list[tuple[Engine, bool]] = field(default_factory=list)
    leaving: list[Engine] = field(default_factory=list)
    wait_for_room: bool = False


class Arenas:
    """`self_play.num_arenas` of them. `rules` and `buffer`: see ArenaActor."""

    def __init__(
        self,
        config: RunConfig,
        folder: Path,
        watch: ActorWatch,
        restarts: RestartBudget,
        rules: Sequence[Rules],
        buffer: BufferHandle,
    ) -> None:
        count = config.self_play.num_arenas
        self._config = config
        self._folder = folder
        self._watch = watch
        self._restarts = restarts
        self._rules = rules
        self._game_within_s = game_within_s(config, max((each.max_turns for each in rules), default=1))
        self._buffer = buffer
        # So that calls are made in the order in which they were decided on; nothing is waited for under it.
        self._lock = RankedLock("arenas", rank=2, may_wait=False)
        self._members: Callable[[], Mapping[str, Members]] = dict
        # By arena and pool: {engine: (the part of it that plays for the arena, whether it takes new games)}
        self._told: list[dict[str, dict[str, tuple[float, bool]]]] = [{} for _ in range(count)]
        self._told_to_wait: list[set[str]] = [set() for _ in range(count)]  # pools
        self._is_paused = False
        self._lives = [0] * count
        self.handles: list[ArenaHandle] = [self._start(index) for index in range(count)]

    def name(self, index: int) -> str:
        """The name of an arena in its calls to the buffer."""
        return f"arena-{index}" if self._lives[index] == 1 else f"arena-{index}.{self._lives[index]}"

    def serve(self, members: Callable[[], Mapping[str, Members]]) -> None:
        """`members` says which engines there are now, by pool."""
        self._members = members

    def update(self, *pools: str) -> None:
        """Tell each arena what has changed in these pools: engines that joined play at once, also in games under way;
        those that are gone get no more requests."""
        with self._lock:
            members, calls = self._members(), dict[Ref[None], ArenaHandle]()
            for pool in pools:
                calls |= self._share_out(pool, members.get(pool) or Members(""))
        self._wait_for(calls)

    def wait_until_empty(self, engine: Engine, gives_up: Callable[[], bool] = lambda: False) -> None:
        """Returns when an engine that takes no new games has none left, or when `gives_up` says so. Raises
        NoAnswerError when that takes longer than any game."""
        with self._lock:
            calls = {
                handle.drain.remote(engine.pool, engine.name): handle
                for handle, told in zip(self.handles, self._told, strict=True)
                if engine.name in told.get(engine.pool, {})
            }
        within_s = self._watch.answer_within_s + self._game_within_s
        deadline, left = time.monotonic() + within_s, list(calls)
        while left and not gives_up():
            done, left = ray.wait(left, num_returns=len(left), timeout=1.0)
            self._wait_for({call: calls[call] for call in done})
            if left and time.monotonic() > deadline:
                raise NoAnswerError(f"the games of {engine.name} have not ended within {within_s:g} s")

    def pause(self, is_paused: bool) -> None:
        """Start no game while paused; those under way are finished."""
        with self._lock:
            self._is_paused = is_paused
            calls = {(arena.pause if is_paused else arena.resume).remote(): arena for arena in self.handles}
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
            self._told[index], self._told_to_wait[index] = {}, set()
            calls = {handle.pause.remote(): handle} if self._is_paused else {}
            for pool, members in self._members().items():
                calls |= self._share_out(pool, members)
        self._wait_for(calls)
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

    def _wait_for(self, calls: Mapping[Ref[None], ArenaHandle]) -> None:
        """Returns when these arenas have done it, which takes no time itself. One that is dead, or found to hang
        (actor_watch.py), is skipped: the code that waits for its games replaces it, and `replace` brings the new one up
        to date. One that Ray cannot reach may have missed what it was told, so it is killed. Raises NoAnswerError if
        one that lives does not answer."""
        for call, handle in calls.items():
            try:
                get(call, self._watch.answer_within_s)
            except ACTOR_LOST as error:
                if is_unavailable(error):
                    ray.kill(handle)

    def _share_out(self, pool: str, members: Members) -> dict[Ref[None], ArenaHandle]:
        """Tell each arena what has changed in its shares of a pool's engines. The caller holds the lock."""
        engines, calls = members.engines, dict[Ref[None], ArenaHandle]()
        there = {engine.name for engine in (*(engine for engine, _ in engines), *members.leaving)}
        for index, (handle, told_of) in enumerate(zip(self.handles, self._told, strict=True)):
            told = told_of.setdefault(pool, {})
            for gone in told.keys() - there:
                del told[gone]
                calls[handle.drop.remote(pool, gone)] = handle
            mine = shares(index, len(self._told), len(engines))
            now = [(engine, mine.get(place, 0.0), is_open) for place, (engine, is_open) in enumerate(engines)]
            now += [(engine, 0.0, False) for engine in members.leaving]
            changed = [each for each in now if told.get(each[0].name) != each[1:]]
            told |= {engine.name: (share, is_open) for engine, share, is_open in changed}
            if changed:
                calls[handle.share.remote(pool, members.policy, changed)] = handle
            if (pool in self._told_to_wait[index]) != members.wait_for_room:
                self._told_to_wait[index] ^= {pool}
                calls[handle.wait_for_room.remote(pool, members.policy, members.wait_for_room)] = handle
        return calls

    def _start(self, index: int) -> ArenaHandle:
        self._lives[index] += 1
        name = self.name(index)
        actor = ray.remote(ArenaActor).options(name=f"{name}-{label_of(self._folder)}", num_cpus=0)
        handle: ArenaHandle = actor.remote(
            name,
            str(self._folder / "logs" / f"{name}.log"),
            self._rules,
            turn_timeout_s=self._config.engine.turn_timeout_s,
            join_timeout_s=self._config.engine.start_timeout_s,
            buffer=self._buffer,
        )
        self._watch.watch(name, handle)
        return handle


def shares(arena: int, num_arenas: int, num_engines: int) -> dict[int, float]:
    """{engine: the part of it that plays for `arena`, above 0 and at most 1}

    >>> shares(0, 2, 3), shares(1, 2, 3)
    ({0: 1.0, 1: 0.5}, {1: 0.5, 2: 1.0})
    >>> shares(2, 4, 1)
    {0: 0.25}
    """
    begin, end = arena * num_engines, (arena + 1) * num_engines  # on a line where an engine is `num_arenas` long
    engines = range(begin // num_arenas, -(-end // num_arenas))
    return {
        engine: (min(end, (engine + 1) * num_arenas) - max(begin, engine * num_arenas)) / num_arenas
        for engine in engines
    }


def game_within_s(config: RunConfig, max_turns: int) -> float:
    """No game of so many turns of each seat takes longer."""
    return 2 * max_turns * config.engine.longest_turn_s

"""An arena in an actor of its own: it plays over remote engines and sends episodes to the buffer as they finish."""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

from actors.arena import LISTENER, GameTask, Player, Rules, TaskList, TaskSource, answer, play_all, play_game
from actors.endpoint_policy import Endpoint, EndpointPolicy
from actors.models import load_tokenizer
from actors.pool import EnginePool
from actors.scripted_policy import ScriptedPolicy
from cluster.buffer.buffer_actor import BufferHandle
from cluster.buffer.stream import STAGE
from cluster.handles import Actor, Handle, actor_method
from cluster.rollout.remote_policy import Pace, RemotePolicy
from cluster.runtime.ray_session import collect_seldom, redirect_output
from cluster.runtime.without_torch import without_torch
from cluster.types import Engine, Seat
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import encode
from spag_ray.game.game_form import chosen_scenario
from spag_ray.game.protocol import UsesCards, played_by
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role, Verdict
from spag_ray.game.styles import game_renderer

MAX_UNSENT = 64  # episodes; play waits when the buffer is that far behind


class ArenaActor(Actor):
    """`games`: the rules of each game. `turn_timeout_s`: after this time a turn is requested from another engine.
    `join_timeout_s`: how long games wait for an engine while there is none."""

    def __init__(
        self,
        name: str,
        log_path: str,
        games: Sequence[Rules],
        turn_timeout_s: float,
        join_timeout_s: float,
        buffer: BufferHandle,
    ) -> None:
        redirect_output(log_path)
        # Imports for a second, in which no heartbeat is answered: a start has more time for that than the first game.
        with without_torch(rules.game for rules in games):
            import spag_ray.families.torch_free  # noqa: F401

        collect_seldom()
        self._name = name
        self._games = {rules.name: rules for rules in games}
        self._turn_timeout_s = turn_timeout_s
        self._join_timeout_s = join_timeout_s
        self._buffer = buffer
        self._renderers: dict[tuple[str, str], Renderer] = {}
        self._served: dict[tuple[str, Endpoint, str, str], EndpointPolicy] = {}
        self._pools: dict[str, EnginePool] = {}
        self._pace = Pace()
        self._playing: dict[str, asyncio.Task[int]] = {}  # by stage: an evaluation plays beside a stream
        self._may_play = asyncio.Event()
        self._may_play.set()

    def __repr__(self) -> str:
        """The name in Ray's dashboard and messages."""
        return self._name

    @actor_method
    async def heartbeat(self) -> None:
        """Answers while this process is alive and its event loop runs."""

    @actor_method
    async def share(self, pool: str, policy: str, changes: Sequence[tuple[Engine, float, bool]]) -> None:
        """(engine of `pool`, the part of it that plays for this arena from now on, whether it takes new games), for
        each engine of which that has changed. A new one plays `policy`, also in games under way; see EnginePool for one
        with share 0."""
        to = self._pool(pool, policy)
        for engine, share, is_open in changes:
            if not to.reshare(engine.name, share):
                policy_there = RemotePolicy(engine.handle, engine.name, pace=self._pace, within_s=self._turn_timeout_s)
                to.join(engine.name, policy_there, share)
            (to.reopen if is_open else to.close)(engine.name)
        self._pace.num_engines = sum(pool.num_shared for pool in self._pools.values())

    @actor_method
    async def wait_for_room(self, pool: str, policy: str, waits: bool) -> None:
        """Whether an engine of the pool, which will play `policy`, waits for room."""
        self._pool(pool, policy).wait_for_room(waits)

    @actor_method
    async def drop(self, pool: str, name: str) -> None:
        """Remove an engine that is dead or will be ended."""
        if pool in self._pools:
            self._pools[pool].drop(name)

    @actor_method
    async def drain(self, pool: str, name: str) -> None:
        """Give an engine no new game; returns when its games have ended."""
        if pool in self._pools:
            await self._pools[pool].drain(name)

    @actor_method
    async def pause(self) -> None:
        """Start no game until `resume`; those under way are finished."""
        self._may_play.clear()

    @actor_method
    async def resume(self) -> None:
        self._may_play.set()

    @actor_method
    async def answer(
        self, task: GameTask, texts: list[str], role: Role, seat: Seat
    ) -> tuple[list[str], Verdict | None, Role | None]:
        """The next turn of the seat, which has `role`, in a game against a user, who chose its scenario; see
        actors.arena.answer. Raises InputError for a scenario that the game does not have."""
        rules = self._games[task.game]
        task = replace(task, scenario=chosen_scenario(rules.game, task.scenario, rules.name))
        return await answer(task, texts, role, self._player(seat, rules), rules)

    @actor_method
    async def play(self, tasks: Sequence[GameTask], seats: Mapping[str, Seat], games_in_flight: int) -> int:
        """Play all tasks, which are of one stage; returns how many episodes the buffer acknowledged."""
        if not tasks:
            return 0
        return await self._until_stopped(tasks[0].stage, self._play(TaskList(tasks), seats, games_in_flight))

    @actor_method
    async def play_stream(self, seats: Mapping[str, Seat], games_in_flight: int) -> int:
        """Play what the buffer gives until it closes the stream."""
        return await self._until_stopped(STAGE, self._play(_Leases(self._buffer, self._name), seats, games_in_flight))

    @actor_method
    async def stop(self, stage: str) -> None:
        """Abandon the games of a stage that are under way."""
        if stage in self._playing:
            self._playing[stage].cancel()

    async def _until_stopped(self, stage: str, play: Coroutine[Any, Any, int]) -> int:
        assert stage not in self._playing, f"{stage} is being played already"
        self._playing[stage] = asyncio.create_task(play)
        try:
            return await self._playing[stage]
        except asyncio.CancelledError:
            return 0
        finally:
            del self._playing[stage]

    async def _play(self, source: TaskSource, seats: Mapping[str, Seat], games_in_flight: int) -> int:
        players = {
            game: {name: self._player(seat, rules) for name, seat in seats.items() if name != LISTENER or rules.heard}
            for game, rules in self._games.items()
        }
        outbox = _Outbox(self._buffer)

        def play(task: GameTask) -> Coroutine[Any, Any, Episode]:
            return play_game(task, players[task.game], self._games[task.game])

        async for episode in play_all(_Pausable(source, self._may_play), play, games_in_flight):
            await outbox.put(encode(episode))
        return await outbox.close()

    def _player(self, seat: Seat, rules: Rules) -> Player:
        renderer, game = self._renderer(seat.model, rules), rules.game
        # Engines play every game; a player without a model has its own rules for each.
        is_of_game = seat.cards is not None or seat.endpoint is not None
        pool = self._pool(f"{seat.pool} at {rules.name}" if is_of_game else seat.pool, seat.policy)
        if seat.cards is not None:
            scripted = played_by(game.with_cards(seat.cards) if isinstance(game, UsesCards) else game, seat.script)
            pool.join("expert", ScriptedPolicy(scripted, renderer.reply_ids, seed=seat.sampling.seed or 0))
        if seat.endpoint is not None:
            key = seat.pool, seat.endpoint, seat.model, rules.name
            if key not in self._served:  # it holds connections, and knows whether it has answered before
                within_s = self._turn_timeout_s
                again = int(within_s / 8) + 8  # until the turn's time is up, after which the pool gives up
                served = EndpointPolicy(
                    seat.endpoint, game, renderer.reply_ids, timeout_s=within_s, style=rules.style, max_retries=again
                )
                self._served[key] = served
                pool.join(seat.endpoint.url, served)
        can_score = seat.cards is None and seat.endpoint is None
        return Player(pool, renderer, seat.sampling, can_score=can_score, adapter=seat.adapter, policy=seat.policy)

    def _pool(self, name: str, policy: str) -> EnginePool:
        if name not in self._pools:
            self._pools[name] = EnginePool(policy, self._turn_timeout_s, self._join_timeout_s)
        return self._pools[name]

    def _renderer(self, model: str, rules: Rules) -> Renderer:
        key = model, rules.name
        if key not in self._renderers:
            self._renderers[key] = game_renderer(rules.game, load_tokenizer(model, rules.template_kwargs), rules.style)
        return self._renderers[key]


ArenaHandle: TypeAlias = Handle[ArenaActor]


class _Outbox:
    """Sends episodes to the buffer: one call at a time, with all that finished during the call before."""

    def __init__(self, buffer: BufferHandle) -> None:
        self._buffer = buffer
        self._unsent: list[bytes] = []
        self._acknowledged = 0
        self._sending: asyncio.Task[None] | None = None

    async def put(self, record: bytes) -> None:
        self._unsent.append(record)
        if self._sending is None:
            self._sending = asyncio.create_task(self._send())
        elif self._sending.done() or len(self._unsent) >= MAX_UNSENT:
            await self._sending
            self._sending = asyncio.create_task(self._send())

    async def close(self) -> int:
        """Send everything; returns how many the buffer acknowledged."""
        if self._sending is not None:
            await self._sending
        await self._send()
        return self._acknowledged

    async def _send(self) -> None:
        while self._unsent:
            records, self._unsent = self._unsent, []
            self._acknowledged += await self._buffer.add.remote(records)


@dataclass(eq=False)
class _Pausable:
    """A TaskSource that waits while play is paused."""

    source: TaskSource
    may_play: asyncio.Event

    async def take(self, count: int) -> list[GameTask]:
        await self.may_play.wait()
        return await self.source.take(count)


@dataclass(eq=False)
class _Leases:
    """The buffer's stream as a TaskSource."""

    buffer: BufferHandle
    holder: str

    async def take(self, count: int) -> list[GameTask]:
        return await self.buffer.lease.remote(self.holder, count, uuid.uuid4().hex)

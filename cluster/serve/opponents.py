"""The models that a person can play against, loaded when they are asked for.

    opponents = Opponents(config, {"spag-2": Opponent("/runs/one/models/spag-2")})
    async with opponents.asked("spag-2") as player:          # waits until nobody else asks it
        await game.reply(player)

At most MAX_LOADED models are in memory, each in a process of its own; the one that was not asked for longest makes
room. A model whose process fails is started anew when it is asked again.

What may wait, and for what:

    a call       for the calls to the same model before it, at most MAX_WAIT_S, then for its model
    a model      for room in memory, at most MAX_WAIT_S; a model makes room when nobody asks it
    its loading  at most engine.start_timeout_s
    an answer    at most MAX_TURN_S

The only locks are those of the first line, one for each model. Room is waited for and models are loaded in tasks of
their own, without a lock, so a model that finds no room keeps nobody from the others.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from actors.arena import Player
from actors.engine_process import EngineProcess
from actors.models import load_tokenizer, resolve_model
from actors.policy import LoadedPolicy, Sampling
from actors.pool import EnginePool
from spag_ray.config.engine import EngineConfig
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, EngineError, EngineGoneError, InputError, ModelError, SpagError, meant
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role
from spag_ray.games.registry import renderer_of
from spag_ray.results.report.tokens import Aligner
from spag_ray.results.saved_models import saved_models
from spag_ray.stages import BASE, Stage, order_of

MAX_LOADED = 2
MAX_TURN_S = 120.0  # of one call to a model, while a person waits
MAX_WAIT_S = 300.0  # for other visitors
_T = TypeVar("_T")


class BusyError(SpagError):
    """Too many visitors; the same can be asked again later."""


@dataclass(frozen=True)
class Opponent:
    """A model folder, and the seats that it plays: one, if the run trains a policy for each seat."""

    folder: str
    seats: tuple[Role, ...] = tuple(Role)


def opponents_of_run(folder: Path, config: RunConfig) -> dict[str, Opponent]:
    """The base model, if it is on this machine, and the model of every stage, the oldest first. Raises ConfigError if
    there is none."""
    found: dict[str, Opponent] = {}
    missing = []
    bases = [(str(BASE), config.model, tuple(Role))]
    if config.seat_models:
        bases = [(str(BASE.of_policy(role)), config.model_of(role), (role,)) for role in Role]
    for base, model, seats in bases:
        try:
            found[base] = Opponent(resolve_model(model), seats)
        except ModelError:
            missing.append(model)
    names = [path.name for path in saved_models(folder)]
    for name in sorted(names, key=order_of):
        seats = tuple(Role(player) for player in Stage.parse(name).players if player in tuple(Role))
        found[name] = Opponent(str((folder / "models" / name).resolve()), seats or tuple(Role))
    if not found:
        raise ConfigError(f"{folder}: no stage's model in its models/, and its base model {missing[0]} is not here")
    return found


@dataclass
class _Loaded:
    engine: EngineProcess | LoadedPolicy
    pool: EnginePool


@dataclass
class _Queue:
    """Those who ask a model; one after the other is answered. `num_asking`: those who wait and the one whose turn it
    is; a model that somebody asks stays in memory."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_asking: int = 0


class Opponents:
    """`kind`: the engine, `transformers` or `vllm`. `start`: how one is started."""

    def __init__(
        self,
        config: RunConfig,
        named: Mapping[str, Opponent],
        kind: str = "transformers",
        start: Callable[[str, EngineConfig, str], Awaitable[EngineProcess | LoadedPolicy]] = EngineProcess.start,
        max_wait_s: float = MAX_WAIT_S,
    ) -> None:
        self.named = named
        engine = config.engine.model_dump() | {"kind": kind, "vllm": config.engine.vllm if kind == "vllm" else {}}
        self._engine = EngineConfig.model_validate(engine)
        self._config = config
        self._start = start
        self._max_wait_s = max_wait_s
        self._sampling = Sampling.of(config.sampling, config.evaluation.temperature)
        self._frames: dict[str, tuple[Renderer, Aligner]] = {}
        self._reading: dict[str, asyncio.Task[tuple[Renderer, Aligner]]] = {}
        self._queues = {name: _Queue() for name in named}
        self._loaded: dict[str, _Loaded] = {}  # the one that was asked for longest ago comes first
        self._loading: dict[str, asyncio.Task[_Loaded]] = {}
        self._ending: set[asyncio.Task[None]] = set()
        self._num_in_memory = 0  # loaded, being loaded or ending
        self._room_changed = asyncio.Event()
        self._is_closed = False

    @property
    def max_model_len(self) -> int:
        return self._engine.max_model_len

    @property
    def temperature(self) -> float:
        return self._sampling.temperature

    def find(self, name: str, role: Role) -> None:
        """Raises InputError unless there is such a model, and it plays this seat."""
        if name not in self.named:
            told = f"there is no {name!r} to play against; there are {', '.join(self.named)}"
            raise InputError(told + meant(name, self.named))
        if role not in self.named[name].seats:
            raise InputError(f"{name} was trained for the other seat; take that one, or play against another stage")

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded

    async def frame(self, name: str) -> tuple[Renderer, Aligner]:
        """How a model's prompts are rendered, and its tokens located in text. Raises ModelError."""
        if name not in self._frames:
            self._frames[name] = await _shared(self._reading, name, lambda: self._read_frame(name))
        return self._frames[name]

    async def _read_frame(self, name: str) -> tuple[Renderer, Aligner]:
        limit_s = self._engine.start_timeout_s
        try:
            async with asyncio.timeout(limit_s):  # on a shared disk that hangs
                tokenizer = await asyncio.to_thread(
                    load_tokenizer, self.named[name].folder, self._config.chat_template_kwargs
                )
        except TimeoutError:
            raise ModelError(f"the tokenizer of {name} was not read within {limit_s:g} s") from None

        def decode(token_ids: Sequence[int]) -> str:
            return tokenizer.decode(list(token_ids), skip_special_tokens=True)

        renderer = renderer_of(self._config, tokenizer)
        return renderer, Aligner(decode, lambda reply: (renderer.public(reply), renderer.public(reply, is_ended=True)))

    async def silent(self, name: str) -> Player:
        """The player without an engine: it can be told what was said, not asked."""
        renderer, _ = await self.frame(name)
        return Player(EnginePool(name), renderer, self._sampling)

    @contextlib.asynccontextmanager
    async def asked(self, name: str) -> AsyncIterator[Player]:
        """The player, loaded, for one call. If its process is gone or did not answer in time, it is ended. Raises
        EngineError and ModelError if it cannot be loaded, BusyError if others kept it from being asked."""
        queue = self._queues[name]
        queue.num_asking += 1
        try:
            await self._wait_for_turn(name, queue)
            try:
                renderer, _ = await self.frame(name)
                loaded = await self._load(name)
                try:
                    yield Player(loaded.pool, renderer, self._sampling)
                except EngineError as error:
                    # After a time-out the process still computes what nobody waits for. It may refuse a call and be
                    # well: then the other visitors keep their model.
                    if isinstance(error, EngineGoneError) or loaded.pool.timeouts or loaded.engine.is_dead:
                        self._unload(name)
                    raise
            finally:
                queue.turn.release()
        finally:
            queue.num_asking -= 1
            self._room_changed.set()

    async def _wait_for_turn(self, name: str, queue: _Queue) -> None:
        try:
            async with asyncio.timeout(self._max_wait_s):
                await queue.turn.acquire()
        except TimeoutError:
            raise BusyError(f"{name} was busy with other games for {self._max_wait_s:g} s; ask again") from None

    async def _load(self, name: str) -> _Loaded:
        if name in self._loaded:
            self._loaded[name] = self._loaded.pop(name)
            return self._loaded[name]
        return await _shared(self._loading, name, lambda: self._bring_into_memory(name))

    async def _bring_into_memory(self, name: str) -> _Loaded:
        await self._wait_for_room(name)
        self._num_in_memory += 1
        limit_s = self._engine.start_timeout_s
        try:
            async with asyncio.timeout(limit_s) as limit:
                engine = await self._start(self.named[name].folder, self._engine, name)
        except BaseException as error:
            self._give_room()
            if isinstance(error, TimeoutError) and limit.expired():
                raise EngineError(f"{name} was not loaded within engine.start_timeout_s, {limit_s:g} s") from None
            raise
        timeout_s = min(self._engine.turn_timeout_s, MAX_TURN_S)
        pool = EnginePool(name, turn_timeout_s=timeout_s, join_timeout_s=timeout_s, max_tries=1)
        pool.join(name, engine)
        self._loaded[name] = _Loaded(engine, pool)
        return self._loaded[name]

    async def _wait_for_room(self, name: str) -> None:
        """Between its return and the next `await` there is room for one model more. Several may wait here at once."""
        try:
            async with asyncio.timeout(self._max_wait_s):
                while self._num_in_memory >= MAX_LOADED:
                    if not self._queues[name].num_asking:
                        raise BusyError(f"nobody waits for {name} any more")
                    idle = next((each for each in self._loaded if not self._queues[each].num_asking), None)
                    if idle is not None and not self._ending:  # one that ends makes room already
                        self._unload(idle)
                    self._room_changed.clear()
                    await self._room_changed.wait()
        except TimeoutError:
            raise BusyError(
                f"{name} is not in memory, and the {MAX_LOADED} models that are were all in use for "
                f"{self._max_wait_s:g} s; ask again, or play against another stage"
            ) from None
        if self._is_closed:
            raise EngineError("the server stops")

    def _unload(self, name: str) -> None:
        """End a model's process, in a task: whoever found it dead must not wait for its end."""
        loaded = self._loaded.pop(name, None)
        if loaded is not None:
            ending = asyncio.create_task(loaded.engine.close())
            self._ending.add(ending)
            ending.add_done_callback(self._has_ended)

    def _has_ended(self, ending: asyncio.Task[None]) -> None:
        self._ending.discard(ending)  # first: those that wait for room look whether one is still ending
        self._give_room()

    def _give_room(self) -> None:
        self._num_in_memory -= 1
        self._room_changed.set()

    async def close(self) -> None:
        """Every process has ended when this returns, also one that was just being started."""
        self._is_closed = True
        for task in self._loading.values():
            task.cancel()
        for name in list(self._loaded):
            self._unload(name)
        if tasks := [*self._loading.values(), *self._ending]:
            await asyncio.wait(tasks)


async def _shared(tasks: dict[str, asyncio.Task[_T]], name: str, work: Callable[[], Coroutine[Any, Any, _T]]) -> _T:
    """The result of work that all who need it wait for together. It goes on when one of them is cancelled; after a
    failure the next one tries anew."""

    def forget(done: asyncio.Task[_T]) -> None:
        del tasks[name]
        if not done.cancelled():
            done.exception()  # else asyncio complains about one that nobody waits for any more

    if name not in tasks:
        tasks[name] = asyncio.create_task(work())
        tasks[name].add_done_callback(forget)
    return await asyncio.shield(tasks[name])

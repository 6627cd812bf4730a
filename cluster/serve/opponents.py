"""The models that a person can play against, loaded when they are asked for.

    opponents = Opponents(config, {"spag-2": Opponent("/runs/one/models/spag-2")})
    async with opponents.asked("spag-2") as player:          # waits until nobody else asks it
        await game.reply(player)

At most MAX_LOADED models are in memory, each in a process of its own; the one that was not asked for longest makes
room. A model that fails is started anew when it is asked again.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.arena import Player
from actors.engine_process import EngineProcess
from actors.models import load_tokenizer, resolve_model
from actors.policy import Policy, Sampling
from actors.pool import EnginePool
from spag_ray.config.engine import EngineConfig
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, EngineError, InputError, ModelError
from spag_ray.game.prompt_file import load_template
from spag_ray.game.prompts import Renderer
from spag_ray.game.rules import Role
from spag_ray.games.of_config import renderer_of
from spag_ray.results.report.tokens import Aligner
from spag_ray.results.saved_models import saved_models
from spag_ray.stages import BASE, Stage, order_of

MAX_LOADED = 2
MAX_TURN_S = 120.0  # of one call to a model, while a person waits


@dataclass(frozen=True)
class Opponent:
    """A model folder, and the seats that it plays: one, if the run trains a policy for each seat."""

    folder: str
    seats: tuple[Role, ...] = tuple(Role)


def opponents_of_run(folder: Path, config: RunConfig) -> dict[str, Opponent]:
    """The base model, if it is on this machine, and the model of every stage, the oldest first. Raises ConfigError if
    there is none."""
    found = {}
    with contextlib.suppress(ModelError):
        found[str(BASE)] = Opponent(resolve_model(config.model))
    names = [path.name for path in saved_models(folder)]
    for name in sorted(names, key=order_of):
        seats = tuple(Role(player) for player in Stage.parse(name).players if player in tuple(Role))
        found[name] = Opponent(str((folder / "models" / name).resolve()), seats or tuple(Role))
    if not found:
        raise ConfigError(f"{folder}: no stage's model in its models/, and its base model {config.model} is not here")
    return found


@dataclass
class _Loaded:
    engine: Policy
    pool: EnginePool


@dataclass
class _Queue:
    """Those who ask a model; one after the other is answered."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    num_waiting: int = 0


class Opponents:
    """`kind`: the engine, `transformers` or `vllm`. `start`: how one is started."""

    def __init__(
        self,
        config: RunConfig,
        named: Mapping[str, Opponent],
        kind: str = "transformers",
        start: Callable[[str, EngineConfig, str], Awaitable[Policy]] = EngineProcess.start,
    ) -> None:
        self.named = named
        engine = config.engine.model_dump() | {"kind": kind, "vllm": config.engine.vllm if kind == "vllm" else {}}
        self._engine = EngineConfig.model_validate(engine)
        self._config = config
        self._start = start
        self._sampling = Sampling(config.evaluation.temperature, config.sampling.max_new_tokens)
        self._frames: dict[str, tuple[Renderer, Aligner]] = {}
        self._queues = {name: _Queue() for name in named}
        self._loaded: dict[str, _Loaded] = {}  # the one that was asked for longest ago comes first
        self._loading = asyncio.Lock()
        self._is_closed = False

    @property
    def temperature(self) -> float:
        return self._sampling.temperature

    def find(self, name: str, role: Role) -> None:
        """Raises InputError unless there is such a model, and it plays this seat."""
        if name not in self.named:
            raise InputError(f"there is no {name!r} to play against; there are {', '.join(self.named)}")
        if role not in self.named[name].seats:
            raise InputError(f"{name} was trained for the other seat; take that one, or play against another stage")

    def waiting(self, name: str) -> int:
        """How many calls to this model have not been answered."""
        return self._queues[name].num_waiting

    def is_loaded(self, name: str) -> bool:
        return name in self._loaded

    async def frame(self, name: str) -> tuple[Renderer, Aligner]:
        """How a model's prompts are rendered, and its tokens located in text. Raises ModelError."""
        if name not in self._frames:
            self._frames[name] = await asyncio.to_thread(self._read_frame, self.named[name].folder)
        return self._frames[name]

    def _read_frame(self, folder: str) -> tuple[Renderer, Aligner]:
        tokenizer = load_tokenizer(folder)

        def decode(token_ids: Sequence[int]) -> str:
            return tokenizer.decode(list(token_ids), skip_special_tokens=True)

        return renderer_of(self._config, tokenizer), Aligner(decode, load_template(self._config.prompts).public)

    async def silent(self, name: str) -> Player:
        """The player without an engine: it can be told what was said, not asked."""
        renderer, _ = await self.frame(name)
        return Player(EnginePool(name), renderer, self._sampling)

    @contextlib.asynccontextmanager
    async def asked(self, name: str) -> AsyncIterator[Player]:
        """The player, loaded, for one call. After an EngineError its process is ended. Raises EngineError and
        ModelError if it cannot be loaded."""
        queue = self._queues[name]
        queue.num_waiting += 1
        try:
            async with queue.turn:
                renderer, _ = await self.frame(name)
                try:
                    loaded = await self._load(name)
                    yield Player(loaded.pool, renderer, self._sampling)
                except EngineError:
                    await self._unload(name)
                    raise
        finally:
            queue.num_waiting -= 1

    async def _load(self, name: str) -> _Loaded:
        async with self._loading:
            if self._is_closed:
                raise EngineError("the server stops")
            if name in self._loaded:
                self._loaded[name] = self._loaded.pop(name)
                return self._loaded[name]
            while len(self._loaded) >= MAX_LOADED:
                oldest = next((each for each in self._loaded if not self.waiting(each)), None)
                if oldest is not None:
                    await self._unload(oldest)
                else:
                    await asyncio.sleep(0.1)
            engine = await self._start(self.named[name].folder, self._engine, name)
            timeout_s = min(self._engine.turn_timeout_s, MAX_TURN_S)
            pool = EnginePool(name, turn_timeout_s=timeout_s, max_tries=1)
            pool.join(name, engine)
            self._loaded[name] = _Loaded(engine, pool)
            return self._loaded[name]

    async def _unload(self, name: str) -> None:
        loaded = self._loaded.pop(name, None)
        if loaded is not None:
            await loaded.engine.close()

    async def close(self) -> None:
        self._is_closed = True
        for name in list(self._loaded):
            await self._unload(name)

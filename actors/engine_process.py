"""An engine in a process of its own, without Ray: if it dies, the process that asks lives on.

Calls are answered one at a time, in their order.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from actors.policy import LOADING, Completion, LoadedPolicy, Pairs, Request, Score
from spag_ray.config.engine import EngineConfig
from spag_ray.errors import EngineError, EngineGoneError, SpagError
from spag_ray.host.libraries import set_before_libraries
from spag_ray.host.processes import end_with

CLOSES_WITHIN_S = 3.0
_R = TypeVar("_R")


async def start_engine(
    model: str,
    config: EngineConfig,
    name: str,
    version: int = 0,
    seed: int = 0,
    channel: str = "object_store",
    enters: Callable[[str], None] = lambda phase: None,
) -> LoadedPolicy:
    """An engine of `config.kind` in this process. `enters` is told what the start does next, after the imports.

    Raises EngineError or ModelError if it cannot load the model.
    """
    if config.kind == "vllm":
        from actors.vllm_policy import VllmPolicy

        return await VllmPolicy.start(model, config, name, version=version, seed=seed, channel=channel, enters=enters)
    from actors.transformers_policy import TransformersPolicy

    enters(LOADING)
    return TransformersPolicy(model, config.dtype, config.max_model_len, name, version)


class EngineProcess:
    """A Policy; see the module's docstring. It plays the weights that it was started with. Once its process has ended,
    a call raises EngineGoneError."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_dead = False
        self._pool = ProcessPoolExecutor(
            1, mp_context=multiprocessing.get_context("spawn"), initializer=_end_with, initargs=(os.getpid(),)
        )

    @classmethod
    async def start(cls, model: str, config: EngineConfig, name: str) -> EngineProcess:
        """Load `model`, a folder; 5 to 40 s. Raises EngineError or ModelError if it cannot be loaded."""
        engine = cls(name)
        try:
            await engine._ask(_open, model, config, name)
        except BaseException:
            await engine.close()
            raise
        return engine

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return await self._ask(_call, "generate", list(requests))

    async def score(self, sequences: Pairs, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
        return await self._ask(_call, "score", list(sequences), temperature, adapter)

    async def close(self) -> None:
        """End the process, also in the middle of a call."""
        is_idle = False
        if not self.is_dead:
            with contextlib.suppress(TimeoutError, EngineError):  # vLLM's own processes end with its engine
                await asyncio.wait_for(self._ask(_call, "close"), CLOSES_WITHIN_S)
                is_idle = True
        self.is_dead = True
        processes = list((self._pool._processes or {}).values())  # Python 3.14 has terminate_workers and kill_workers
        self._pool.shutdown(wait=False, cancel_futures=True)
        if is_idle:  # it ends by itself, and removes what it shares with other processes
            await _ended(processes)
        for process in processes:
            process.terminate()
        await _ended(processes)
        for process in processes:  # one that is stopped, or hangs in a driver, never sees SIGTERM
            process.kill()
        await _ended(processes)

    async def _ask(self, call: Callable[..., _R], *arguments: Any) -> _R:
        try:
            return await asyncio.get_running_loop().run_in_executor(self._pool, call, *arguments)
        except (BrokenProcessPool, RuntimeError) as error:  # RuntimeError: it was shut down before
            if not isinstance(error, BrokenProcessPool) and not self.is_dead:
                raise
            self.is_dead = True
            raise EngineGoneError(f"the process of {self.name} has ended (was it out of memory?)") from error


async def _ended(processes: Sequence[BaseProcess]) -> None:
    """Waits for it, at most CLOSES_WITHIN_S."""
    for each in processes:
        await asyncio.to_thread(each.join, CLOSES_WITHIN_S)


# In the process of the engine.


# vLLM's engine belongs to the event loop that it was started in.
_engine: tuple[asyncio.AbstractEventLoop, LoadedPolicy] | None = None


def _end_with(parent: int) -> None:
    """The process ends with its parent, and leaves Ctrl-C to it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    end_with(parent, signal.SIGTERM)


def _open(model: str, config: EngineConfig, name: str) -> None:
    global _engine
    set_before_libraries(config.env)
    loop = asyncio.new_event_loop()
    _engine = loop, loop.run_until_complete(start_engine(model, config, name))


def _call(method: str, *arguments: Any) -> Any:
    """The result of the policy's method. A policy that could not be loaded is only closed, which does nothing. Errors
    cross to the asking process as SpagError, because others may not survive pickling."""
    if _engine is None and method == "close":
        return None
    assert _engine is not None
    loop, policy = _engine
    try:
        return loop.run_until_complete(getattr(policy, method)(*arguments))
    except SpagError:
        raise
    except Exception as error:
        if policy.is_dead:
            os._exit(1)
        raise EngineError(f"{policy.name}: {type(error).__name__}: {str(error)[:300]}") from None

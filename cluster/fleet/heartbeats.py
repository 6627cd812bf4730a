"""Finds engines that are dead or hang.

One call waits at each engine, which holds it for HOLD_S before it answers. So an engine costs a call in HOLD_S; its
death still fails the call at once, and all calls are looked at together.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import ray

from cluster.handles import Ref
from cluster.types import Engine
from spag_ray.config.parts import SupervisionConfig

HOLD_S = 10.0


@dataclass
class _Beat:
    """A call that has not been answered. `asked`: when, or when the first one was that a network did not carry."""

    call: Ref[tuple[int, float]]
    asked: float


class Heartbeats:
    """Call `poll` again and again. `engines`: those that are up; `lost` is called with {name: why} of all that a poll
    finds dead or stuck. `num_pending`: {engine: the turns that it had to answer at its last heartbeat}."""

    def __init__(
        self,
        config: SupervisionConfig,
        engines: Callable[[], Sequence[Engine]],
        lost: Callable[[Mapping[str, BaseException | str]], None],
    ) -> None:
        self._config = config
        self._engines = engines
        self._lost = lost
        self._hold_s = min(HOLD_S, config.heartbeat_timeout_s / 4)
        self._beats: dict[str, _Beat] = {}
        self.num_pending: dict[str, int] = {}

    def poll(self) -> None:
        engines = {engine.name: engine for engine in self._engines()}
        self._beats = {name: self._beats.get(name) or self._ask(engine) for name, engine in engines.items()}
        self.num_pending = {name: count for name, count in self.num_pending.items() if name in engines}
        calls = [beat.call for beat in self._beats.values()]
        answered = set(ray.wait(calls, num_returns=len(calls), timeout=0)[0]) if calls else set()
        faults: dict[str, BaseException | str] = {}
        for name, beat in list(self._beats.items()):
            is_late = time.monotonic() - beat.asked > self._hold_s + self._config.heartbeat_timeout_s
            if beat.call in answered:
                fault = self._heard(engines[name], beat, is_late)
            else:
                silent = f"{name} has not answered a heartbeat for {self._config.heartbeat_timeout_s:g} s"
                fault = silent if is_late else None
            if fault is not None:
                del self._beats[name]
                faults[name] = fault
        if faults:
            self._lost(faults)

    def _ask(self, engine: Engine) -> _Beat:
        return _Beat(engine.handle.heartbeat.remote(self._hold_s), time.monotonic())

    def _heard(self, engine: Engine, beat: _Beat, is_late: bool) -> BaseException | str | None:
        """What is wrong with an engine that has answered, if anything."""
        try:
            num_pending, idle_s = ray.get(beat.call)
        except ray.exceptions.ActorUnavailableError:  # the network failed: it may live, and is asked again
            self._beats[engine.name] = _Beat(self._ask(engine).call, beat.asked)
            return f"{engine.name} could not be reached for {self._config.heartbeat_timeout_s:g} s" if is_late else None
        except ray.exceptions.RayError as error:
            return error
        self.num_pending[engine.name] = num_pending
        if num_pending and idle_s > self._config.engine_stall_s:
            return f"{engine.name} has {num_pending} turns to answer and has answered none for {idle_s:.0f} s"
        self._beats[engine.name] = self._ask(engine)
        return None

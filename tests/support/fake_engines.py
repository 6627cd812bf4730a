"""Engines and arenas without processes, for tests of the fleet: their calls are answered by rules of the test.

ray = FakeRay(); ray.install(monkeypatch)
ray.engines             every engine that was ever started; `dies`, `hangs` change one
ray.alive               those that nobody has killed
"""

import threading
import time
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import ray

_PENDING = object()


class FakeRef:
    """`answer` returns the value, raises the error, or returns _PENDING; what it did first stays."""

    def __init__(self, answer: Callable[[], Any]) -> None:
        self._answer = answer
        self._lock = threading.Lock()
        self._value: Any = _PENDING
        self._error: ray.exceptions.RayError | None = None

    @property
    def is_done(self) -> bool:
        with self._lock:
            if self._value is _PENDING and self._error is None:
                try:
                    self._value = self._answer()
                except ray.exceptions.RayError as error:
                    self._error = error
            return self._value is not _PENDING or self._error is not None

    def get(self) -> Any:
        assert self.is_done
        if self._error is not None:
            raise self._error
        return self._value


class FakeEngine:
    """The handle of an engine. `start_s`: how long its start takes. `loaded`: the versions that it was given, and the
    saved weights. `turns_end`: when its turns in progress do, for which a load waits."""

    def __init__(self, name: str, start_s: float) -> None:
        self.name = name
        self.is_dead = self.hangs = False
        self.is_asleep = self.is_up = False
        self.loaded: list[Any] = []
        self.turns_end = 0.0
        self._up_at = time.monotonic() + start_s

    def __getattr__(self, method: str) -> Any:
        if method.startswith("__") and method != "__ray_ready__":
            raise AttributeError(method)
        called = SimpleNamespace(remote=lambda *arguments, **named: self._call(method, arguments))
        called.options = lambda **_: called
        return called

    def _call(self, method: str, arguments: tuple[Any, ...]) -> FakeRef:
        def answer() -> Any:
            if self.is_dead:
                raise ray.exceptions.RayActorError
            if self.hangs or (method == "start" and time.monotonic() < self._up_at):
                return _PENDING
            self.is_up = self.is_up or method == "start"
            if method in ("sleep", "wake"):
                self.is_asleep = method == "sleep"
            if method in ("load", "load_saved"):
                if time.monotonic() < self.turns_end:
                    return _PENDING
                assert not self.is_asleep, "a sleeping engine has no memory for weights"
                self.loaded.append(arguments[0])
                return (arguments[0], 10) if method == "load" else None
            return (0, 0.0) if method == "heartbeat" else None

        return FakeRef(answer)


class FakeArena:
    """What an arena knows: {pool: {engine: (share, takes games)}}, and what it was told of waits for room. Engines
    named in `busy` have a game that does not end before they are taken from there."""

    def __init__(self, busy: set[str]) -> None:
        self.known: dict[str, dict[str, tuple[float, bool]]] = {}
        self.waits: list[tuple[str, bool]] = []
        self.is_dead = False
        self._busy = busy

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(method, *arguments))

    def _call(self, method: str, *arguments: Any) -> FakeRef:
        if method == "share" and not self.is_dead:
            pool, _, changes = arguments
            for engine, share, is_open in changes:
                self.known.setdefault(pool, {})[engine.name] = share, is_open
        if method == "wait_for_room":
            self.waits.append((arguments[0], arguments[2]))
        if method == "drop" and not self.is_dead:
            self.known.get(arguments[0], {}).pop(arguments[1], None)

        def answer() -> Any:
            if self.is_dead:
                raise ray.exceptions.RayActorError
            if method == "drain":
                pool, name = arguments
                if name in self._busy and name in self.known.get(pool, {}):
                    return _PENDING
            return None

        return FakeRef(answer)


class FakeRay:
    """In place of ray's functions that the fleet calls."""

    def __init__(self, start_s: float = 0.0) -> None:
        self.start_s = start_s
        self.engines: list[FakeEngine] = []
        self.busy: set[str] = set()
        self._lock = threading.Lock()

    @property
    def alive(self) -> list[FakeEngine]:
        return [engine for engine in self.engines if not engine.is_dead]

    @property
    def awake(self) -> list[str]:
        """Engines that have memory of their devices."""
        return [engine.name for engine in self.alive if engine.is_up and not engine.is_asleep and not engine.hangs]

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray, "remote", lambda **_: lambda cls: SimpleNamespace(options=self._options))
        monkeypatch.setattr(ray, "wait", self._wait)
        monkeypatch.setattr(ray, "get", self._get)
        monkeypatch.setattr(ray, "kill", self._kill)

    def arena(self) -> FakeArena:
        return FakeArena(self.busy)

    def _options(self, name: str, **_: Any) -> Any:
        def remote(log: str) -> FakeEngine:
            engine = FakeEngine(name, self.start_s)
            with self._lock:
                self.engines.append(engine)
            return engine

        return SimpleNamespace(remote=remote)

    def _kill(self, handle: Any, no_restart: bool = True) -> None:
        handle.is_dead = True

    def _wait(
        self, refs: Sequence[FakeRef], num_returns: int = 1, timeout: float = 0, **_: Any
    ) -> tuple[list[Any], list[Any]]:
        deadline = time.monotonic() + timeout
        while True:
            done = [ref for ref in refs if ref.is_done]
            if len(done) >= num_returns or time.monotonic() >= deadline:
                return done, [ref for ref in refs if ref not in done]
            time.sleep(0.002)

    def _get(self, refs: Any, timeout: float = 0) -> Any:
        several = isinstance(refs, list | tuple)
        done, pending = self._wait(list(refs) if several else [refs], len(refs) if several else 1, timeout)
        if pending:
            raise ray.exceptions.GetTimeoutError
        return [ref.get() for ref in refs] if several else done[0].get()

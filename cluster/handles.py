"""Types of actor handles for mypy: their methods, the arguments, and the result of a call.

A handle is described by a Protocol next to its actor. EngineHandle is here because every room uses Engine:

    class CounterHandle(ActorHandle, Protocol):
        @remote_method
        def add(self, number: int) -> int: ...

    counter: CounterHandle = ray.remote(Counter).remote()
    total: int = get(counter.add.remote(3))

Ray makes the handle; nothing here is called at run time. A test (tests/unit/run/test_handles.py) compares every
Protocol with its actor's class.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

if TYPE_CHECKING:  # a session (console.py) imports this, and has little installed
    from actors.policy import Score, WakePart
    from spag_ray.config.engine import EngineConfig
    from spag_ray.config.parts import Channel
    from spag_ray.weights.snapshot import Bucket

P = ParamSpec("P")
R = TypeVar("R")
Result = TypeVar("Result", covariant=True)

# Requests and answers travel as plain tuples: pickling one of our objects takes ten times as long as its fields.
# An answer that failed is (request_id, reason).
Packed = tuple[Any, ...]

# {name of an adapter, or None for whole weights: (folder, version)}
SavedWeights = Mapping[str | None, tuple[str, int]]


class Ref(Protocol[Result]):
    """ray.ObjectRef of one result: `await` it in an actor's event loop, `ray_session.get` it elsewhere."""

    def __await__(self) -> Generator[Any, None, Result]: ...

    def hex(self) -> str: ...


class RemoteMethod(Protocol[P, Result]):
    """A method of an actor's handle."""

    def remote(self, *args: P.args, **kwargs: P.kwargs) -> Ref[Result]: ...

    def options(
        self, *, concurrency_group: str = ..., max_task_retries: int = ..., num_returns: int = ...
    ) -> RemoteMethod[P, Result]: ...


def remote_method(method: Callable[Concatenate[Any, P], R]) -> RemoteMethod[P, R]:
    """Marks the methods of a handle's Protocol; they have the actor's signatures, without `async`."""
    return cast(RemoteMethod[P, R], method)


class ActorHandle(Protocol):
    """What Ray adds to every actor."""

    @remote_method
    def __ray_ready__(self) -> None: ...


class EngineHandle(ActorHandle, Protocol):
    """The handle of an EngineActor (rollout/engine_actor.py)."""

    @remote_method
    def start(
        self, model: str, config: EngineConfig, name: str, version: int, seed: int, channel: Channel = "object_store"
    ) -> int: ...

    @remote_method
    def exchange(self, client: str, requests: list[Packed], cancelled: list[str], gather_s: float) -> list[Packed]: ...

    @remote_method
    def pulse(self) -> str: ...

    @remote_method
    def heartbeat(self, hold_s: float = 0.0) -> tuple[int, float]: ...

    @remote_method
    def score(
        self, sequences: Sequence[tuple[Sequence[int], Sequence[int]]], temperature: float, adapter: str | None = None
    ) -> list[Score]: ...

    @remote_method
    def load(
        self,
        version: int,
        num_tensors: int,
        refs: Sequence[Ref[Bucket]],
        adapter: Mapping[str, Any] | None = None,
        in_flight: bool = False,
    ) -> tuple[int, int]: ...

    @remote_method
    def open_channel(self, init_info: Mapping[str, Any]) -> None: ...

    @remote_method
    def begin_update(self, in_flight: bool) -> None: ...

    @remote_method
    def take_update(self, update: Mapping[str, Any]) -> None: ...

    @remote_method
    def end_update(self, version: int) -> None: ...

    @remote_method
    def played_version(self) -> int: ...

    @remote_method
    def load_saved(self, saved: SavedWeights) -> None: ...

    @remote_method
    def sleep(self) -> None: ...

    @remote_method
    def wake(self, part: WakePart = "all") -> None: ...

    @remote_method
    def close(self) -> None: ...

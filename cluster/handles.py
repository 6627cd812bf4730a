"""Types of actor handles for mypy: their methods, the arguments, and the result of a call.

    class Counter(Actor):
        @actor_method
        async def add(self, number: int) -> int: ...

    counter: Handle[Counter] = ray.remote(Counter).remote()
    total: int = get(counter.add.remote(3))
    await Counter().add(3)  # as ever

For mypy a handle is the class itself: there a method that is marked has `remote`, and on an object it is called. A
handle that is used in a room below its actor's is described by a Protocol instead, with `remote_method`. EngineHandle
is here because every room uses Engine. A test (tests/unit/run/test_handles.py) compares every Protocol with its actor's
class. Ray makes the handles; nothing here is called at run time.

Ray's own types (ActorClass, ActorProxy, @ray.method) know neither names of arguments nor defaults, nor the options of a
method. And with them mypy refuses a call of a marked method on an object, as tests without Ray make it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeAlias, TypeVar, cast, overload

if TYPE_CHECKING:  # a session (console.py) imports this, and has little installed
    from actors.policy import Pairs, Score, WakePart
    from spag_ray.config.engine import EngineConfig
    from spag_ray.results.lines import EngineFigures
    from spag_ray.weights.snapshot import Bucket

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
Result = TypeVar("Result", covariant=True)
Direct = TypeVar("Direct", covariant=True)

# Requests and answers travel as plain tuples: pickling one of our objects takes ten times as long as its fields.
# An answer that failed is (request_id, reason).
Packed = tuple[Any, ...]

# {name of an adapter, or None for whole weights: (folder, version)}. None beside names: whole weights of several
# players, which an engine takes in turn (rollout/request_queue.py).
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


class ActorMethod(Protocol[P, Direct, Result]):
    """A method of an actor's class: called on an object as ever, and on a handle with `remote`."""

    @overload
    def __get__(self, instance: None, owner: Any) -> RemoteMethod[P, Result]: ...

    @overload
    def __get__(self, instance: object, owner: Any) -> Callable[P, Direct]: ...


@overload
def actor_method(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
) -> ActorMethod[P, Coroutine[Any, Any, R], R]: ...


@overload
def actor_method(method: Callable[Concatenate[Any, P], R]) -> ActorMethod[P, R, R]: ...


def actor_method(method: Any) -> Any:
    """Marks the methods of an actor's class that may be called on its handle."""
    return method


class ActorHandle(Protocol):
    """What Ray adds to every actor."""

    @remote_method
    def __ray_ready__(self) -> None: ...


class Actor:
    """What Ray adds to every actor's class."""

    @actor_method
    def __ray_ready__(self) -> None: ...


# The handle of an actor of class T, as mypy sees it.
Handle: TypeAlias = type[T]


class EngineHandle(ActorHandle, Protocol):
    """The handle of an EngineActor (rollout/engine_actor.py)."""

    @remote_method
    def start(
        self, model: str, config: EngineConfig, name: str, version: int, seed: int, channel: str = "object_store"
    ) -> int: ...

    @remote_method
    def exchange(self, client: str, requests: list[Packed], cancelled: list[str], gather_s: float) -> list[Packed]: ...

    @remote_method
    def gpus(self) -> tuple[str, ...]: ...

    @remote_method
    def pulse(self) -> str: ...

    @remote_method
    def heartbeat(self, hold_s: float = 0.0) -> tuple[int, float]: ...

    @remote_method
    def figures(self) -> EngineFigures: ...

    @remote_method
    def score(self, sequences: Pairs, temperature: float, adapter: str | None = None) -> list[Score]: ...

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

"""mypy sees through `.remote`: the Protocols of actors' handles are what the actors are, and calls are checked."""

import inspect
from pathlib import Path

import pytest

from cluster.buffer.buffer_actor import BufferActor
from cluster.handles import ActorHandle, EngineHandle
from cluster.rollout.arena_actor import ArenaActor
from cluster.rollout.engine_actor import EngineActor
from cluster.supervision.actor_watch import RestartedHandle, WatchedHandle

ACTORS: dict[type, type] = {EngineHandle: EngineActor, WatchedHandle: ArenaActor, RestartedHandle: BufferActor}
ROOT = Path(__file__).resolve().parents[3]
CALLS = """
from cluster.buffer.buffer_actor import BufferActor, BufferHandle
from cluster.handles import EngineHandle
from cluster.rollout.arena_actor import ArenaHandle
from cluster.run.run import RunHandle
from cluster.runtime.ray_session import get


async def calls(engine: EngineHandle, arena: ArenaHandle, buffer: BufferHandle, run: RunHandle) -> None:
    version, num_bytes = await engine.load.remote(3, 1, [], in_flight=True)
    tasks = await buffer.lease.remote("arena-0", 3, request="a")
    num_new: int = await BufferActor("folder").add([])
"""
# {a wrong call: what mypy has to say of it}
WRONG = {
    'engine.load_saved.remote("folder")': 'incompatible type "str"; expected "Mapping[str | None, tuple[str, int]]"',
    'engine.load_saves.remote("folder", 3)': 'has no attribute "load_saves"',
    'engine.wake.remote("weight")': "expected \"Literal['all', 'weights', 'kv_cache']\"",
    'records: list[str] = get(buffer.take.remote("spag-1"))': 'expected "Ref[list[str]]"',
    'counts: list[str] = get([buffer.count.remote("spag-1")])': 'expected "Ref[str]"',
    'buffer.lease.remote("arena-0")': 'Missing positional argument "count"',
    'buffer.take("spag-1")': '"RemoteMethod[[str], list[bytes]]" not callable',
    "buffer._write.remote()": 'has no attribute "remote"',
    'run.stop_soon.remote("now")': 'incompatible type "str"; expected "float"',
    "arena.pause.remote(now=True)": 'Unexpected keyword argument "now"',
    "arena.drain.options(max_task_retries=0).remote('policy', version)": 'incompatible type "int"; expected "str"',
}


def methods(handle: type) -> list[str]:
    """Those that a handle's Protocol names itself."""
    return [name for name, value in vars(handle).items() if inspect.isfunction(value) and not name.startswith("_")]


@pytest.mark.parametrize("handle", ACTORS, ids=lambda handle: handle.__name__)
def test_a_handle_has_its_actors_methods(handle: type) -> None:
    actor = ACTORS[handle]
    assert methods(handle)
    for name in methods(handle):
        ours, theirs = inspect.signature(getattr(handle, name)), inspect.signature(getattr(actor, name))
        assert ours == theirs, f"{handle.__name__}.{name} is {ours}, {actor.__name__} has {theirs}"


def test_every_handle_is_compared_with_an_actor() -> None:
    def below(handle: type) -> set[type]:
        return {handle}.union(*map(below, handle.__subclasses__()))

    assert below(ActorHandle) - {ActorHandle} == set(ACTORS)


def test_mypy_finds_wrong_arguments_methods_and_results(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from mypy import api

    snippet = tmp_path / "calls.py"
    snippet.write_text(CALLS + "".join(f"    {call}\n" for call in WRONG), encoding="utf-8")
    monkeypatch.chdir(ROOT)  # where its settings are
    found, _, _ = api.run([str(snippet), "--no-error-summary"])
    errors = [line for line in found.splitlines() if ": error:" in line]
    assert len(errors) == len(WRONG), found
    for error, said in zip(errors, WRONG.values(), strict=True):
        assert said in error, found

"""How the arenas of a run share its engines, and what a replaced arena is told."""

from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray
from hypothesis import given
from hypothesis import strategies as st

from cluster.rollout import arenas as arenas_module
from cluster.rollout.arenas import Arenas, Members, shares
from cluster.types import Engine
from spag_ray.config.loading import parse_config


class FakeArena:
    """What an arena would know: {engine: (share, whether it takes new games)}. A call is answered with its name."""

    def __init__(self) -> None:
        self.engines: dict[str, tuple[float, bool]] = {}
        self.calls: list[str] = []

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(remote=lambda *arguments: self._call(method, *arguments))

    def _call(self, method: str, *arguments: Any) -> str:
        self.calls.append(method)
        if method == "share":
            pool, policy, changes = arguments
            assert policy == f"plays in {pool}"
            for engine, share, is_open in changes:
                assert engine.pool == pool
                assert (share, is_open) != self.engines.get(engine.name), "nothing is said twice"
                self.engines[engine.name] = share, is_open
        if method == "drop":
            del self.engines[arguments[1]]
        if method == "drain":
            assert not self.engines[arguments[1]][1], "it takes no new games before it is waited for"
        return f"{method} {id(self)} {len(self.calls)}"


class Pools:
    """The engines that there are, and which of them take no new games."""

    def __init__(self, arenas: Arenas) -> None:
        self.arenas = arenas
        self.engines: dict[Engine, bool] = {}
        arenas.serve(self.members)

    def members(self) -> dict[str, Members]:
        found: dict[str, Members] = {}
        for engine, is_open in self.engines.items():
            found.setdefault(engine.pool, Members(f"plays in {engine.pool}")).engines.append((engine, is_open))
        return found

    def join(self, engines: list[Engine]) -> None:
        self.engines |= dict.fromkeys(engines, True)
        self.arenas.update(*{engine.pool for engine in engines})

    def drop(self, engine: Engine) -> None:
        self.engines.pop(engine, None)
        self.arenas.update(engine.pool)

    def drain(self, engine: Engine) -> None:
        self.engines[engine] = False
        self.arenas.update(engine.pool)
        self.arenas.wait_until_empty(engine)

    def reopen(self, engine: Engine) -> None:
        self.engines[engine] = True
        self.arenas.update(engine.pool)


@pytest.fixture
def pools(arenas: Arenas) -> Pools:
    return Pools(arenas)


@pytest.fixture
def arenas(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Arenas:
    """Three arenas that only note what they are told."""
    monkeypatch.setattr(arenas_module, "get", lambda call, timeout_s: call)
    monkeypatch.setattr(arenas_module.ray, "kill", lambda handle: None)
    monkeypatch.setattr(arenas_module.ray, "wait", lambda calls, num_returns, timeout: (calls, []))

    def start(self: Arenas, index: int) -> Any:
        self._lives[index] += 1
        return FakeArena()

    monkeypatch.setattr(Arenas, "_start", start)
    watch: Any = SimpleNamespace(forget=lambda name: None, reason=lambda name: None, answer_within_s=1.0)
    restarts: Any = SimpleNamespace(count=lambda *_: None)
    nothing: Any = None
    return Arenas(parse_config({"self_play": {"num_arenas": 3}}), tmp_path, watch, restarts, [], nothing)


def engines(count: int, pool: str = "policy") -> list[Engine]:
    handle: Any = None
    return [Engine(handle, f"{pool}-{number}", pool) for number in range(count)]


def known(arenas: Arenas) -> list[dict[str, tuple[float, bool]]]:
    handles: Any = arenas.handles
    return [{name: told for name, told in arena.engines.items() if told[0]} for arena in handles]


def test_engines_that_join_are_shared_out(arenas: Arenas, pools: Pools) -> None:
    first, second, third = engines(3)
    pools.join([first])
    assert known(arenas) == [{"policy-0": (1 / 3, True)}] * 3, "one engine plays for all"
    pools.join([second, third])
    assert known(arenas) == [{f"policy-{number}": (1.0, True)} for number in range(3)]
    pools.join(engines(1, "other"))
    assert known(arenas) == [{f"policy-{number}": (1.0, True), "other-0": (1 / 3, True)} for number in range(3)]


def test_an_arena_whose_engine_is_lost_gets_part_of_the_others(arenas: Arenas, pools: Pools) -> None:
    all_engines = engines(3)
    pools.join(all_engines)
    pools.drop(all_engines[1])
    assert known(arenas) == [
        {"policy-0": (2 / 3, True)},
        {"policy-0": (1 / 3, True), "policy-2": (1 / 3, True)},
        {"policy-2": (2 / 3, True)},
    ]
    pools.drop(all_engines[1])  # said by two: nothing changes
    pools.drop(all_engines[0])
    pools.drop(all_engines[2])
    assert known(arenas) == [{}] * 3


def test_a_drained_engine_is_closed_for_arenas_that_get_a_share_of_it_meanwhile(arenas: Arenas, pools: Pools) -> None:
    all_engines = engines(3)
    pools.join(all_engines)
    pools.drain(all_engines[2])
    pools.drop(all_engines[1])
    assert known(arenas)[1] == {"policy-0": (1 / 3, True), "policy-2": (1 / 3, False)}
    assert known(arenas)[2] == {"policy-2": (2 / 3, False)}
    pools.reopen(all_engines[2])
    assert known(arenas)[1:] == [{"policy-0": (1 / 3, True), "policy-2": (1 / 3, True)}, {"policy-2": (2 / 3, True)}]


def test_every_arena_knows_every_engine_so_it_can_ask_another_than_its_own(arenas: Arenas, pools: Pools) -> None:
    pools.join(engines(3))
    handles: Any = arenas.handles
    assert [{name: told[0] for name, told in arena.engines.items()} for arena in handles] == [
        {f"policy-{number}": float(number == index) for number in range(3)} for index in range(3)
    ]


def test_an_engine_that_retires_is_closed_everywhere_and_no_longer_shared_out(arenas: Arenas, pools: Pools) -> None:
    """Once an arena had half of one that was to leave, and of no other one: its games waited for the end of others."""
    stays, leaves = engines(2)
    pools.join([stays, leaves])
    members = Members("plays in policy", [(stays, True)], [leaves])
    arenas.serve(lambda: {"policy": members})
    arenas.update("policy")
    handles: Any = arenas.handles
    assert [arena.engines for arena in handles] == [{"policy-0": (1 / 3, True), "policy-1": (0.0, False)}] * 3


def test_every_arena_drains_and_drops_an_engine(arenas: Arenas, pools: Pools) -> None:
    """One without a share of it may have games there."""
    first, second, third = engines(3)
    pools.join([first])
    pools.join([second, third])
    handles: Any = arenas.handles
    assert [arena.engines["policy-0"][0] for arena in handles] == [1.0, 0.0, 0.0]
    pools.drain(first)
    pools.drop(first)
    assert [arena.calls[-4:-1] for arena in handles] == [["share", "drain", "drop"]] * 3


def test_an_arena_that_is_replaced_is_told_everything(arenas: Arenas, pools: Pools) -> None:
    all_engines = engines(4)
    pools.join(all_engines)
    pools.join(engines(1, "other"))
    pools.drain(all_engines[2])
    arenas.pause(True)
    before = known(arenas)
    handle: Any = arenas.replace(1, "arena-1", RuntimeError())
    assert known(arenas) == before
    assert handle.calls == ["pause", "share", "share"]


def test_after_the_end_nothing_is_told(arenas: Arenas, pools: Pools) -> None:
    all_engines = engines(2)
    pools.join(all_engines)
    arenas.close()
    pools.drop(all_engines[0])
    pools.join(all_engines)


def test_an_arena_that_could_not_be_reached_is_killed_because_it_may_have_missed_what_it_was_told(
    arenas: Arenas, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed: list[Any] = []
    lost: Any = arenas.handles[1]

    def get(call: str, timeout_s: float) -> None:
        if str(id(lost)) in call:
            raise ray.exceptions.ActorUnavailableError("the network", None)

    monkeypatch.setattr(arenas_module, "get", get)
    monkeypatch.setattr(arenas_module.ray, "kill", killed.append)
    pools.join(engines(3))
    assert killed == [lost]


def test_an_arena_that_ray_has_ended_for_memory_is_skipped_like_any_dead_one(
    arenas: Arenas, pools: Pools, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(call: str, timeout_s: float) -> None:
        if str(id(arenas.handles[1])) in call:
            raise ray.exceptions.OutOfMemoryError("the node ran low on memory")

    monkeypatch.setattr(arenas_module, "get", get)
    pools.join(engines(3))
    assert known(arenas) == [{f"policy-{number}": (1.0, True)} for number in range(3)]


@given(num_arenas=st.integers(1, 20), num_engines=st.integers(1, 600))
def test_arenas_get_equal_parts_and_every_engine_is_shared_out_once(num_arenas: int, num_engines: int) -> None:
    of_engines: Counter[int] = Counter()
    for arena in range(num_arenas):
        own = shares(arena, num_arenas, num_engines)
        assert own, "every arena has an engine"
        assert abs(sum(own.values()) - num_engines / num_arenas) < 1e-9
        assert all(0 < share <= 1 for share in own.values())
        of_engines.update(own)
    assert sorted(of_engines) == list(range(num_engines))
    assert all(abs(part - 1) < 1e-9 for part in of_engines.values())


@given(num_arenas=st.integers(1, 20), num_engines=st.integers(1, 600))
def test_few_engines_belong_to_two_arenas(num_arenas: int, num_engines: int) -> None:
    """As many as there are cuts."""
    pairs = sum(len(shares(arena, num_arenas, num_engines)) for arena in range(num_arenas))
    assert pairs <= num_engines + num_arenas - 1


def test_without_engines_nobody_has_one() -> None:
    assert shares(0, 3, 0) == {}

"""What a run does about nodes that Ray will take away."""

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.fleet import drained_nodes
from cluster.fleet.drained_nodes import MARGIN_S, DrainedNodes
from cluster.fleet.roster import EngineRecord, State
from cluster.types import Engine


class FakeFleet:
    """Engines whose handle is the name of their node. They move off at once; threads run to their end at once."""

    def __init__(self, *records: EngineRecord) -> None:
        self.roster = SimpleNamespace(lock=threading.RLock(), records=list(records))
        self.tasks = SimpleNamespace(start=self.in_thread, is_stopped=False)
        self.done: list[str] = []
        self.within_s = 0.0

    def in_thread(self, name: str, work: Callable[[], None]) -> None:
        work()

    def move_off(self, record: EngineRecord, engine: Engine, reason: str, timeout_s: float) -> bool:
        self.done.append(f"{record.name} leaves: {reason}")
        self.within_s = timeout_s
        has_left, record.state = record.is_up, State.LOST
        return has_left

    def replace(self, record: EngineRecord) -> None:
        self.done.append(f"{record.name} comes back")


def engine(name: str, node: str, pool: str = "policy", is_extra: bool = False) -> EngineRecord:
    process: Any = SimpleNamespace(name=name, handle=node, pool=pool)
    return EngineRecord(name, pool, pool, "model", is_extra=is_extra, engine=process, state=State.PLAYING, version=1)


def drained(engines: FakeFleet, learner_nodes: frozenset[str] = frozenset()) -> tuple[DrainedNodes, list[str]]:
    """Also what is noted and saved."""
    said: list[str] = []
    policies: Any = [SimpleNamespace(learners=SimpleNamespace(nodes=learner_nodes))]
    every: Any = engines
    return DrainedNodes(every, policies, lambda: said.append("save"), said.append), said


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """Ray's view. A node that is drained is gone after `looks` further looks at the nodes."""
    view = SimpleNamespace(draining={}, looks=2)

    def nodes() -> list[Any]:
        view.looks -= 1
        return [SimpleNamespace(node_id=node) for node in view.draining] if view.looks >= 0 else []

    monkeypatch.setattr(drained_nodes, "draining_nodes", lambda: view.draining)
    monkeypatch.setattr(drained_nodes, "node_of", lambda handle: handle)
    monkeypatch.setattr(drained_nodes, "ray_nodes", nodes)
    monkeypatch.setattr(drained_nodes.time, "sleep", lambda seconds: None)
    return view


def test_an_engine_leaves_once_and_a_planned_one_comes_back_when_the_node_is_gone(cluster: SimpleNamespace) -> None:
    engines = FakeFleet(engine("planned", "a"), engine("extra", "a", is_extra=True), engine("stays", "b"))
    nodes, _ = drained(engines)
    nodes.poll()
    assert engines.done == []
    cluster.draining = {"a": 0.0}
    nodes.poll()
    nodes.poll()
    assert engines.done == [
        "planned leaves: its node a is drained",
        "planned comes back",
        "extra leaves: its node a is drained",
    ]
    assert cluster.looks == -1, "it waited until the node was gone"


def test_the_only_engine_of_a_pool_plays_on(cluster: SimpleNamespace) -> None:
    engines = FakeFleet(engine("only", "a"), engine("other pool", "b", pool="past"))
    cluster.draining = {"a": 0.0}
    drained(engines)[0].poll()
    assert engines.done == []


def test_an_engine_leaves_before_the_deadline(cluster: SimpleNamespace) -> None:
    engines = FakeFleet(engine("leaves", "a", is_extra=True), engine("stays", "b"))
    cluster.draining = {"a": time.time() + 60}
    drained(engines)[0].poll()
    assert 0 < engines.within_s <= 60 - MARGIN_S


def test_a_run_is_saved_once_for_each_node_of_a_learner(cluster: SimpleNamespace) -> None:
    nodes, said = drained(FakeFleet(), frozenset(["a", "b"]))
    cluster.draining = {"c": 0.0}
    nodes.poll()
    assert said == []
    for draining in ({"a": 0.0}, {"a": 0.0}, {"a": 0.0, "b": 0.0}):
        cluster.draining = draining
        nodes.poll()
    assert said.count("save") == 2

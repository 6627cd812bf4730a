"""Engines are added and let go one at a time, and those at the end of the list first."""

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.fleet import elastic_engines
from cluster.fleet.elastic_engines import ElasticEngines
from spag_ray.config.engine import EngineConfig
from spag_ray.errors import EngineError


class Policy:
    name = "policy"


POLICY: Any = Policy()


class FakeFleet:
    """Engines that join and leave at once; `num_turns` turns are under way at each. It is its own roster, and hears
    their heartbeats."""

    def __init__(self, num_turns: int) -> None:
        self.num_turns = num_turns
        self.records: list[Any] = []
        self.roster = self.heartbeats = self
        self.tasks = SimpleNamespace(start=self.in_thread, is_stopped=False)
        self.refused: Exception | None = None
        self.place(False)

    def place(self, is_extra: bool) -> None:
        name = f"engine-{len(self.records)}"
        self.records.append(SimpleNamespace(learner=POLICY, is_extra=is_extra, name=name, is_up=True))

    @property
    def num_pending(self) -> dict[str, int]:
        return {record.name: self.num_turns for record in self.records}

    def in_thread(self, name: str, work: Callable[[], None]) -> threading.Thread:
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        return thread

    def add(self, policy: Any, is_extra: bool) -> None:
        if self.refused is not None:
            raise self.refused
        self.place(is_extra)

    def retire(self, record: Any, reason: str) -> None:
        self.records.remove(record)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    now = SimpleNamespace(s=0.0)
    monkeypatch.setattr(elastic_engines, "time", SimpleNamespace(monotonic=lambda: now.s))
    return now


def elastic(engines: Any, notes: list[str], **limits: float) -> ElasticEngines:
    config = {"num_engines": {"min": 1, "max": 3, "grow_after_s": 0, "shrink_after_s": 0} | limits, "max_num_seqs": 8}
    return ElasticEngines(EngineConfig.model_validate(config), engines, [POLICY], notes.append)


def test_engines_come_with_the_load_and_go_with_it(clock: SimpleNamespace) -> None:
    engines = FakeFleet(num_turns=20)
    numbers, scaled = [], elastic(engines, [])
    for num_turns in (20, 20, 20, 2, 2, 2):
        engines.num_turns = num_turns
        scaled.scale()
        numbers.append(len(engines.records))
    assert numbers == [2, 3, 3, 2, 1, 1]
    assert [each.name for each in engines.records] == ["engine-0"], "the first stays"


def test_an_engine_that_finds_no_room_is_asked_for_again_a_minute_later(clock: SimpleNamespace) -> None:
    engines, notes = FakeFleet(num_turns=20), list[str]()
    scaled = elastic(engines, notes)
    engines.refused = EngineError("no room for 1 GPU")
    for clock.s in (0, 30, 59):
        scaled.scale()
    assert notes == ["no engine was added, the run continues with the engines that it has: no room for 1 GPU"]
    engines.refused, clock.s = None, 61
    scaled.scale()
    assert len(engines.records) == 2


def test_a_plain_number_of_engines_is_left_alone(clock: SimpleNamespace) -> None:
    engines: Any = FakeFleet(num_turns=20)
    ElasticEngines(EngineConfig(num_engines=1, max_num_seqs=8), engines, [POLICY], print).scale()
    assert len(engines.records) == 1

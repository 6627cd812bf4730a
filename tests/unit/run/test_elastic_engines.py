"""Engines are added and let go one at a time, and those at the end of the list first."""

import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.fleet import elastic_engines
from cluster.fleet.elastic_engines import ElasticEngines, Scaling
from cluster.schedules.stream import streaming
from spag_ray.config.engine import EngineConfig, EngineRange
from spag_ray.config.loading import parse_config
from spag_ray.errors import EngineError

Load = tuple[Any, ...]  # (engines, turns to answer, in a stream the share of its time that the learner waits)


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


def scaling(**changes: float) -> Scaling:
    limits = {"min": 1, "max": 3, "grow_after_s": 10, "shrink_after_s": 30} | changes
    return Scaling(EngineRange.model_validate(limits), max_num_seqs=16)


def steps(of: Scaling, load: Load, times: range) -> list[int]:
    """The times at which an engine is added (positive) or let go (negative)."""
    return [step * at for at in times if (step := of.step(at, *load))]


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        ((1, 16), 1),  # turns wait in its queue
        ((1, 15), 0),
        ((3, 100), 0),  # there are as many as there may be
        ((0, 100), 0),  # the first is being replaced
        ((2, 8), -1),  # one engine has room for twice as many
        ((2, 9), 0),
        ((1, 0), 0),
        ((2, 0), 0),  # the learner works: nothing is known of the next round
        ((2, 31, 0.5), 1),
        ((2, 9, 0.5), 1),  # the learner waits, although no turn does
        ((2, 8, 0.5), 0),  # there are too few games for another engine
        ((2, 40, 0.1), 0),
        ((2, 0, 0.0), -1),  # games wait for the learner
        ((2, 9, 0.0), 0),
        ((2, 0, 0.1), 0),
    ],
)
def test_what_a_load_asks_for(load: Load, expected: int) -> None:
    assert scaling(grow_after_s=0, shrink_after_s=0).step(5.0, *load) == expected


def test_a_need_has_to_last_and_starts_anew_after_each_step() -> None:
    busy = scaling()
    assert steps(busy, (1, 16), range(0, 25)) == [10, 21]
    assert steps(busy, (2, 8), range(30, 100)) == [-60, -91]


def test_a_need_that_ends_is_forgotten() -> None:
    once = scaling()
    assert steps(once, (1, 16), range(0, 9)) == []
    assert once.step(9, 1, 15) == 0
    assert steps(once, (1, 16), range(10, 22)) == [20]


def test_after_a_stream_its_learner_no_longer_decides() -> None:
    """The last match was played with as few engines as a learner that never waited had asked for."""
    asked = SimpleNamespace(remote=lambda *_: SimpleNamespace(lag=Counter()))
    names = ("open_stream", "close_stream", "stream_counts", "count")
    ground: Any = SimpleNamespace(
        config=parse_config({}),
        versions=dict,
        buffer=SimpleNamespace(handle=SimpleNamespace(**dict.fromkeys(names, asked)), get=lambda call: call),
        buffer_metrics=SimpleNamespace(sample=lambda now: None),
        arenas=SimpleNamespace(handles=[], stop=lambda *_: None),
        elastic=SimpleNamespace(learner_waits=None),
    )
    nothing: Any = None
    with streaming(ground, nothing, {}, nothing):
        ground.elastic.learner_waits = 0.0
    assert ground.elastic.learner_waits is None

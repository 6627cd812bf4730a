"""What engines measure: they are asked with a bound, a line for each, and how long they had nothing to answer."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cluster.fleet import engine_meter
from cluster.fleet.engine_meter import EngineMeter
from cluster.tracking.recorder import Recorder
from spag_ray.results.lines import EngineFigures
from tests.support.fake_engines import _PENDING, FakeRay, FakeRef
from tests.support.runs import records_of


def engine(name: str, answer: Callable[[], Any]) -> Any:
    return SimpleNamespace(name=name, handle=SimpleNamespace(figures=SimpleNamespace(remote=lambda: FakeRef(answer))))


def gone() -> Any:
    raise ray.exceptions.RayActorError


def test_engines_that_are_gone_or_busy_are_left_out_of_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeRay().install(monkeypatch)
    monkeypatch.setattr(engine_meter, "WITHIN_S", 0.2)
    figures = [EngineFigures(10.0, 0.75, kv_cache_max=0.5), EngineFigures(5.0, 0.0)]
    engines = [
        *(engine(f"engine-{number}", lambda each=each: each) for number, each in enumerate(figures)),  # type: ignore[misc]
        engine("engine-gone", gone),
        engine("engine-late", lambda: _PENDING),
    ]
    roster: Any = SimpleNamespace(up=lambda: engines)
    meter = EngineMeter(roster, Recorder(tmp_path))
    began = time.monotonic()
    meter.take("spag-1", 3)
    assert time.monotonic() - began < 5, "no engine is waited for without end"
    first, second = records_of(tmp_path, "engine")
    assert first | {"time": 0} == {
        "time": 0, "kind": "engine", "stage": "spag-1", "engine": "engine-0", "version": 3,
        "seconds": 10.0, "busy_share": 0.75, "kv_cache_max": 0.5,
    }  # fmt: skip
    assert second["engine"] == "engine-1"
    meter.take()
    assert len(records_of(tmp_path, "engine")) == 2, "no stage, no line"
    assert meter.idle_share() == pytest.approx(0.5), "7.5 of 15 s, twice"
    assert meter.idle_share() is None, "nothing since"


def test_a_run_without_engines_waits_for_nothing(tmp_path: Path) -> None:
    roster: Any = SimpleNamespace(up=list)
    meter = EngineMeter(roster, Recorder(tmp_path))
    meter.take("spag-1", 3)
    assert meter.idle_share() is None

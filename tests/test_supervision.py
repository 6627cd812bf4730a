"""Who is found dead or stuck, how often that may happen, and what is written down of it."""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import pytest
import ray
from runs import records_of

from cluster.arena_actor import Engine
from cluster.metrics import Metrics
from cluster.supervisor import EngineWatch, Placed, Restarts, TooManyRestartsError
from spag_ray.config import SupervisionConfig
from spag_ray.errors import LearnersLostError

pytestmark = pytest.mark.usefixtures("local_ray")


def test_restarts_are_bounded_counted_and_written_down(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    restarts = Restarts(SupervisionConfig(max_restarts=2, within_s=60), metrics)
    restarts.count("engine-policy-0", "engine-policy-0 has not answered a heartbeat for 120 s")
    restarts.count("learners", ray.exceptions.OutOfMemoryError("the node ran out of memory"))
    late = LearnersLostError("a learner call took longer than learner.timeout_s (20 s)")
    late.__cause__ = ray.exceptions.GetTimeoutError()
    with pytest.raises(TooManyRestartsError, match=r"3 restarts within 60 s.*out of memory; learners: stuck"):
        restarts.count("learners", late)
    with pytest.raises(TooManyRestartsError):
        restarts.count("arena-0", RuntimeError("it is gone"))
    assert [line["cause"] for line in records_of(tmp_path, "restart")] == ["stuck", "out of memory", "stuck", "crash"]


def test_an_old_restart_does_not_count(tmp_path: Path) -> None:
    restarts = Restarts(SupervisionConfig(max_restarts=1, within_s=0.05), Metrics(tmp_path))
    for _ in range(3):
        restarts.count("engine", "stuck")
        time.sleep(0.06)


ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find this file by its name


class Silent:
    """An engine whose heartbeat says what it is told to."""

    def __init__(self, beat: Any) -> None:
        self._beat = beat

    def heartbeat(self) -> Any:
        if self._beat == "never":
            time.sleep(600)
        return self._beat


@pytest.mark.parametrize(
    "beat, fault",
    [
        ((0, 500.0), None),
        ((3, 0.1), None),
        ((3, 9.0), "engine-0 has 3 turns to answer and has answered none for 9 s"),
        ("never", "engine-0 has not answered a heartbeat for 2 s"),
    ],
)
def test_a_heart_that_stops_is_noticed(beat: Any, fault: str | None) -> None:
    found: list[tuple[Placed, Any]] = []
    config = SupervisionConfig(heartbeat_timeout_s=2, engine_stall_s=5)
    watch = EngineWatch(config, lambda placed, what: (found.append((placed, what)), watch.forget(placed.engine)))
    handle = ray.remote(Silent).options(num_cpus=0).remote(beat)
    ray.get(handle.__ray_ready__.remote())
    placed = Placed(Engine(handle, "engine-0", "policy"), "model", "policy")
    watch.watch(placed)
    watch.start()
    deadline = time.monotonic() + (15 if fault else 4)
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
    watch.stop()
    ray.kill(handle)
    assert [what for _, what in found] == ([fault] if fault else [])

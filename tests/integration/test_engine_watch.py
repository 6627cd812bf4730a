"""Engines and a harness that are dead or stuck are found on a real Ray."""

from __future__ import annotations

import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cluster.monitor.status_board import StatusBoard
from cluster.rollout.engines import Placed
from cluster.schedules.task_evaluation import HarnessStuckError, TaskEvaluation
from cluster.supervision.engine_watch import EngineWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.config.parts import SupervisionConfig
from spag_ray.config.run import RunConfig
from spag_ray.host.folder_lease import FolderLease

pytestmark = pytest.mark.usefixtures("local_ray")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find this file by its name


class Silent:
    """An engine whose heartbeat says what it is told to."""

    def __init__(self, beat: Any) -> None:
        self._beat = beat

    def heartbeat(self, hold_s: float) -> Any:
        if self._beat == "never":
            time.sleep(600)
        return self._beat


@pytest.mark.parametrize(
    ("beat", "fault"),
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

    def lost(placed: Placed, what: BaseException | str) -> None:
        found.append((placed, what))
        watch.forget(placed.engine)

    watch = EngineWatch(config, lost)
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


def test_an_engine_that_dies_while_another_is_replaced_is_replaced_meanwhile() -> None:
    found: list[str] = []
    is_mended = threading.Event()

    def replace(placed: Placed, fault: Any) -> None:
        found.append(placed.engine.name)
        if placed.engine.name == "engine-0":
            assert is_mended.wait(30), "the other one has to be seen first"
        is_mended.set()

    watch = EngineWatch(SupervisionConfig(heartbeat_timeout_s=60), replace)
    actor = ray.remote(Silent).options(num_cpus=0)
    engines = [Engine(actor.remote((0, 0.0)), f"engine-{number}", "policy") for number in range(2)]
    ray.get([engine.handle.__ray_ready__.remote() for engine in engines])
    for engine in engines:
        watch.watch(Placed(engine, "model", "policy"))
    watch.start()
    for engine in engines:
        ray.kill(engine.handle)
        deadline = time.monotonic() + 10
        while engine.name not in found and time.monotonic() < deadline:
            time.sleep(0.1)
    time.sleep(1.5)
    watch.stop()
    assert found == ["engine-0", "engine-1"], "each once"
    watch.check()


class Harness:
    """Says once how far it is, and then nothing."""

    def __init__(self) -> None:
        self._num_asked = 0

    def evaluate(self, *_: Any) -> None:
        time.sleep(600)

    def progress(self) -> tuple[int, int]:
        self._num_asked += 1
        if self._num_asked > 1:
            time.sleep(600)
        return 1, 10


def test_a_harness_that_hangs_is_noticed(tmp_path: Path) -> None:
    config = RunConfig(supervision=SupervisionConfig(heartbeat_timeout_s=2))
    recorder, status = Recorder(tmp_path), StatusBoard(lambda: 0)
    restarts = RestartBudget(config.supervision, recorder)
    ground: Any = SimpleNamespace(config=config, recorder=recorder, status=status, poll_health=lambda: None)
    tasks = TaskEvaluation(ground, FolderLease.take(tmp_path), [], restarts)
    handle = ray.remote(Harness).options(num_cpus=0, max_concurrency=2).remote()
    nobody: Any = None
    with pytest.raises(HarnessStuckError, match="the evaluation of boolq has not answered a heartbeat for 2 s"):
        tasks._ask(handle, "boolq", "base", lambda: [Engine(nobody, "engine-0", "policy")])
    shown = status.progress(is_paused=False)
    assert (shown.stage, shown.done, shown.total) == ("eval-base: boolq", 1, 10)
    ray.kill(handle)

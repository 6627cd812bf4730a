"""Engines and a harness that are dead or stuck are found on a real Ray."""

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cluster.fleet.heartbeats import Heartbeats
from cluster.monitor.status_board import StatusBoard
from cluster.schedules.task_evaluation import HarnessStuckError, TaskEvaluation
from cluster.supervision.actor_watch import BEAT_S
from cluster.supervision.restart_budget import RestartBudget
from cluster.supervision.tasks import Tasks
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.config.parts import SupervisionConfig
from spag_ray.config.run import RunConfig
from spag_ray.host.folder_lease import FolderLease
from spag_ray.results.game_names import GameNames

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
    found: list[Any] = []
    handle = ray.remote(Silent).options(num_cpus=0).remote(beat)
    ray.get(handle.__ray_ready__.remote())
    watched = [Engine(handle, "engine-0", "policy")]

    def lost(faults: Mapping[str, BaseException | str]) -> None:
        found.extend(faults.values())
        watched.clear()

    beats = Heartbeats(SupervisionConfig(heartbeat_timeout_s=2, engine_stall_s=5), lambda: watched, lost)
    tasks = Tasks()
    tasks.every(BEAT_S, beats.poll, "heartbeats")
    deadline = time.monotonic() + (15 if fault else 4)
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
    tasks.stop()
    tasks.check()
    ray.kill(handle)
    assert found == ([fault] if fault else [])


def test_engines_that_die_are_found_each_once() -> None:
    found: list[str] = []
    actor = ray.remote(Silent).options(num_cpus=0)
    watched = [Engine(actor.remote((0, 0.0)), f"engine-{number}", "policy") for number in range(2)]
    engines = list(watched)
    ray.get([engine.handle.__ray_ready__.remote() for engine in engines])

    def lost(faults: Mapping[str, BaseException | str]) -> None:
        found.extend(faults)
        watched[:] = [engine for engine in watched if engine.name not in faults]

    beats = Heartbeats(SupervisionConfig(heartbeat_timeout_s=60), lambda: watched, lost)
    for engine in engines:
        beats.poll()
        ray.kill(engine.handle)
        deadline = time.monotonic() + 10
        while engine.name not in found and time.monotonic() < deadline:
            beats.poll()
            time.sleep(0.1)
    beats.poll()
    assert found == ["engine-0", "engine-1"]


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
    recorder, status = Recorder(tmp_path), StatusBoard(lambda: 0, GameNames())
    restarts = RestartBudget(config.supervision, recorder)
    nobody: Any = None
    fleet = SimpleNamespace(roster=SimpleNamespace(of=lambda pool: [Engine(nobody, "engine-0", pool)]))
    ground: Any = SimpleNamespace(
        config=config, recorder=recorder, status=status, poll_health=lambda: None, fleet=fleet
    )
    tasks = TaskEvaluation(ground, FolderLease.take(tmp_path), [], restarts)
    handle = ray.remote(Harness).options(num_cpus=0, max_concurrency=2).remote()
    with pytest.raises(HarnessStuckError, match="the evaluation of boolq has not answered a heartbeat for 2 s"):
        tasks._ask(handle, "boolq", "base", "policy")
    shown = status.progress(is_paused=False)
    assert (shown.stage, shown.done, shown.total) == ("eval-base: boolq", 1, 10)
    ray.kill(handle)

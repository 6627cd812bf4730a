"""Parts of a run that are killed while it runs: it goes on, and nothing that finished is lost."""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from conftest import TARGETS
from runs import records_of, tiny_run

from cluster.arena_actor import Engine
from cluster.launch import placed_run
from cluster.metrics import Metrics
from cluster.run_folder import make_run_folder
from cluster.runtime import ray_session
from cluster.supervisor import EngineWatch, Placed, Restarts, TooManyRestartsError
from spag_ray.cards import taboo_cards
from spag_ray.config import ClusterConfig, RunConfig, SupervisionConfig
from spag_ray.episode_log import LogFaults, read_log


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    with ray_session(ClusterConfig(num_cpus=2, object_store_gib=0.2)):
        yield
        assert [actor for actor in ray.util.list_named_actors()] == []


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(TARGETS) + "\n")
    return path


def processes_of(kind: str) -> list[psutil.Process]:
    """This Ray's actors of a class: Ray names their processes so."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.cmdline() and process.cmdline()[0].startswith(f"ray::{kind}"):
                found.append(process)
        except psutil.Error:
            continue
    return found


def kill_one(kind: str, chance: random.Random) -> bool:
    """SIGKILL to one process of an actor class; False if there is none now."""
    processes = sorted(processes_of(kind), key=lambda process: process.pid)
    if not processes:
        return False
    os.kill(chance.choice(processes).pid, signal.SIGKILL)
    return True


def run_with_faults(config: RunConfig, folder: Path, kinds: list[str], gap_s: float, seed: int) -> list[str]:
    """The run to its end, with one fault after another from its second version on; returns the faults."""
    make_run_folder(folder, config)
    chance = random.Random(seed)
    targets = list(TARGETS)
    done: list[str] = []
    with placed_run(config, folder, config.model, targets[2:], targets[:2], taboo_cards()) as run:
        training = run.train.remote()

        def wait_until(is_time: Callable[[], bool]) -> bool:
            while not is_time():
                if ray.wait([training], timeout=0.1)[0]:
                    return False
            return True

        if wait_until(lambda: ray.get(run.status.remote()).version >= 2):
            for kind in kinds:
                began = time.monotonic()
                if not wait_until(lambda: kill_one(kind, chance)):  # noqa: B023
                    break
                done.append(kind)
                if not wait_until(lambda: time.monotonic() - began > gap_s):  # noqa: B023
                    break
        ray.get(training)
    return done


def check_invariants(folder: Path, num_games: int, num_parts: int) -> None:
    """What has to hold whatever was killed."""
    faults = LogFaults()
    episodes = list(read_log(folder / "episodes" / "stream.log", faults))
    numbers = [episode.number for episode in episodes]
    assert len(numbers) == len(set(numbers)), "every episode is in the log once"
    assert set(range(num_games)) <= set(numbers), "no game is lost"
    assert faults.num_gaps == 0
    versions = [line["version"] for line in records_of(folder, "sync")]
    assert versions == sorted(versions), "published versions only rise"
    published = set(versions) | {0}
    played = {turn.first_version for episode in episodes for turn in episode.turns if turn.policy == "policy"}
    assert played <= published, "no turn was played on weights that were not proved"
    last = records_of(folder, "stream")[-1]
    lags = {int(key[4:]): last[key] for key in last if key.startswith("lag_")}
    assert sum(lags.values()) == num_games, "every episode of every version, once"
    saved = [line["name"] for line in records_of(folder, "checkpoint")]
    assert saved[-1] == f"version-{num_parts}", "the run came to its end"


@pytest.mark.slow  # a run of two minutes, in which every kind of process is killed
@pytest.mark.timeout(580)
def test_a_stream_goes_on_whatever_is_killed(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    kinds = ["EngineActor", "LearnerActor", "BufferActor", "ArenaActor"]
    num_parts = 60
    config = tiny_run(
        tiny_model,
        words,
        schedule="stream",
        stream={"games_per_version": 8, "max_lag": 3},
        imitation={"source": "scripted", "enabled": False},
        engine={"kind": "transformers", "num_engines": 2, "num_cpus": 0.25, "turn_timeout_s": 20},
        learner={"num_cpus": 0.5, "timeout_s": 120},
        objective={"learn_from": "both"},
        self_play={"rounds": 1, "games_per_round": 8 * num_parts, "games_in_flight": 8},
        checkpoint={"every_versions": 5},
        evaluation={"games": 0},
    )
    folder = tmp_path / "run"
    assert run_with_faults(config, folder, kinds, gap_s=4, seed=0) == kinds
    check_invariants(folder, 8 * num_parts, num_parts)
    begun_again = Counter(line["what"].split("-")[0] for line in records_of(folder, "restart"))
    assert begun_again.keys() >= {"engine", "learners", "arena"}
    assert all(line["cause"] == "crash" for line in records_of(folder, "restart"))


def test_restarts_are_bounded_counted_and_written_down(tmp_path: Path) -> None:
    metrics = Metrics(tmp_path)
    restarts = Restarts(SupervisionConfig(max_restarts=2, within_s=60), metrics)
    restarts.count("engine-policy-0", "engine-policy-0 has not answered a heartbeat for 120 s")
    restarts.count("learners", ray.exceptions.OutOfMemoryError("the node ran out of memory"))
    with pytest.raises(TooManyRestartsError, match=r"3 restarts within 60 s.*0: stuck; learners: out of mem"):
        restarts.count("arena-0", RuntimeError("it is gone"))
    causes = [(line["what"], line["cause"]) for line in records_of(tmp_path, "restart")]
    assert causes == [("engine-policy-0", "stuck"), ("learners", "out of memory"), ("arena-0", "crash")]


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
    placed = Placed(Engine(handle, "engine-0", "policy"), "model", "policy")
    watch.watch(placed)
    watch.start()
    deadline = time.monotonic() + (15 if fault else 4)
    while not found and time.monotonic() < deadline:
        time.sleep(0.1)
    watch.stop()
    ray.kill(handle)
    assert [what for _, what in found] == ([fault] if fault else [])

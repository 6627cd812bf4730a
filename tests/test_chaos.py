"""Every kind of process of a run is killed or hangs while it runs: it comes to its end, nothing finished is lost."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray
from conftest import TARGETS
from faults import FAULTS, FaultyRun
from runs import records_of, tiny_run

from cluster.runtime import ray_session
from spag_ray.config import ClusterConfig, RunConfig


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    with ray_session(ClusterConfig(num_cpus=2, object_store_gib=0.3)):
        yield
        assert [actor for actor in ray.util.list_named_actors()] == []
        left = [process for process in psutil.Process().children(recursive=True) if "VLLM" in process.name()]
        assert left == [], "an engine's own processes end with it"


@pytest.fixture(scope="module")
def words(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("words") / "words.txt"
    path.write_text("\n".join(TARGETS) + "\n")
    return path


def stream_run(model: Path, words: Path, num_parts: int, **changes: Any) -> RunConfig:
    config: dict[str, Any] = {
        "schedule": "stream",
        "stream": {"games_per_version": 8, "max_lag": 3},
        "imitation": {"enabled": False},
        "engine": {"num_engines": 2, "num_cpus": 0.25, "turn_timeout_s": 20},
        "learner": {"num_cpus": 0.5, "timeout_s": 20},
        "objective": {"learn_from": "both"},
        "self_play": {"rounds": 1, "games_per_round": 8 * num_parts, "games_in_flight": 8},
        "checkpoint": {"every_versions": 5},
        "supervision": {"max_restarts": 100, "heartbeat_timeout_s": 8},
        "sync": {"timeout_s": 60},
        "evaluation": {"games": 0},
    }
    for key, value in changes.items():
        config[key] = {**config[key], **value}
    return tiny_run(model, words, **config)


@pytest.mark.slow  # a run of two minutes
@pytest.mark.timeout(580)
def test_a_stream_goes_on_whatever_is_killed(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    faults = ["engine killed", "learner killed", "buffer killed", "arena killed", "run killed"]
    config = stream_run(tiny_model, words, 60, engine={"kind": "transformers"})
    run = FaultyRun(config, tmp_path / "run", faults, gap_s=3, seed=0)
    run.to_the_end()
    run.check(60)
    again = {line["what"].split("-")[0] for line in records_of(tmp_path / "run", "restart")}
    assert again >= {"engine", "learners", "arena"} and records_of(tmp_path / "run", "resumed")


@pytest.mark.chaos  # twenty minutes
@pytest.mark.timeout(1790)
def test_thirty_faults(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """Real vLLM engines; every kind of fault at least four times, in an order of the seed's."""
    kinds = sorted(FAULTS)
    faults = [kinds[number % len(kinds)] for number in range(30)]
    random.Random(0).shuffle(faults)
    num_parts = 600
    run = FaultyRun(stream_run(tiny_model, words, num_parts), tmp_path / "run", faults, gap_s=5, seed=0)
    run.to_the_end()
    print()
    for kind in kinds:
        times = [each.recovered_s for each in run.injected if each.fault == kind and each.recovered_s is not None]
        print(f"{kind:16} {len(times)} times, back after {min(times):.1f} to {max(times):.1f} s")
    run.check(num_parts)

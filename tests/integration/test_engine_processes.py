"""What a killed engine leaves behind: vLLM's core, in a process of its own, holds the GPU until it ends."""

import os
import signal
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from cluster.launch.placed_run import placed_run
from cluster.rollout.engine_actor import EngineActor
from cluster.runtime.ray_session import get
from spag_ray.config.engine import EngineConfig
from spag_ray.errors import EngineError
from tests.support.runs import stream_run
from tests.support.tiny_model import TARGETS


@pytest.mark.usefixtures("local_ray")
@pytest.mark.timeout(200)
def test_a_killed_engine_takes_its_core_with_it_within_five_seconds(tiny_model: Path, tmp_path: Path) -> None:
    engine = ray.remote(EngineActor).options(num_cpus=0, max_concurrency=8).remote(str(tmp_path / "engine.log"))
    config = EngineConfig(max_model_len=128, kv_cache_gib=0.05, dtype="float32")
    ray.get(engine.start.remote(str(tiny_model), config, "policy", 0, 0))
    pid = next(
        process.pid
        for process in psutil.Process().children(recursive=True)
        if process.name().startswith("ray::") and any("VLLM" in child.name() for child in process.children())
    )
    cores = [child for child in psutil.Process(pid).children(recursive=True) if child.is_running()]
    named = [child.name() for child in cores if "VLLM" in child.name()]
    assert len(named) == 1, f"the worker is in the core's process: {named}"
    os.kill(pid, signal.SIGKILL)
    _, left = psutil.wait_procs(cores, timeout=5)
    assert [process.name() for process in left] == []


@pytest.mark.usefixtures("local_ray")
@pytest.mark.parametrize(
    ("changed", "told"),
    [
        (
            {"kv_cache_gib": 0.0001},
            r"max seq len \(1024\).*; raise engine.kv_cache_gib, or lower engine.max_model_len; the whole trace",
        ),
        (
            {"max_model_len": 16384},
            r"max_model_len \(16384\) is greater than the derived .*; lower engine.max_model_len; the",
        ),
    ],
)
def test_an_engine_that_cannot_start_says_why_and_which_key_to_change(
    changed: dict[str, Any], told: str, tiny_model: Path, tmp_path: Path
) -> None:
    engine = ray.remote(EngineActor).options(num_cpus=0, max_concurrency=8).remote(str(tmp_path / "engine.log"))
    config = EngineConfig.model_validate({"max_model_len": 1024, "dtype": "float32", **changed})
    with pytest.raises(EngineError, match=told) as caught:
        get(engine.start.remote(str(tiny_model), config, "policy", 0, 0))
    assert "root cause" not in str(caught.value)
    assert str(tmp_path / "engine.log") in str(caught.value)
    ray.kill(engine)


def cores_of_vllm() -> list[psutil.Process]:
    return [each for each in psutil.Process().children(recursive=True) if "VLLM" in each.name()]


@pytest.mark.long  # two vLLM engines
@pytest.mark.timeout(300)
def test_a_run_that_is_broken_off_leaves_no_engine_behind(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """Its Ray is stopped at once, which may be before it has ended what killed actors had started."""
    config, folder = stream_run(tiny_model, words, 50), tmp_path / "run"
    folder.mkdir()
    with placed_run(config, folder, str(tiny_model), {"taboo": TARGETS[2:]}, {"taboo": TARGETS[:2]}, {}) as run:
        training = run.train.remote()
        while len(cores := cores_of_vllm()) < config.engine.min_engines:  # and a worker each, on five cores or more
            assert not ray.wait([training], timeout=0.5)[0], "it has ended by itself"
        time.sleep(2)
    _, left = psutil.wait_procs(cores, timeout=0.5)
    assert [process.name() for process in left] == []

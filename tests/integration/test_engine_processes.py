"""What a killed engine leaves behind: vLLM's core, in a process of its own, holds the GPU until it ends."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import psutil
import pytest
import ray

from cluster.rollout.engine_actor import EngineActor
from spag_ray.config.parts import EngineConfig

pytestmark = pytest.mark.usefixtures("local_ray")


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
    os.kill(pid, signal.SIGKILL)
    _, left = psutil.wait_procs(cores, timeout=5)
    assert [process.name() for process in left] == []

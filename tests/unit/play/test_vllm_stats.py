"""What vLLM counts step by step, as the figures of a stage."""

from types import SimpleNamespace

import pytest
from vllm.v1.metrics.stats import SchedulerStats

from actors import vllm_stats
from actors.vllm_stats import EngineStats, Gpus
from spag_ray.results.lines import EngineFigures


def stats_of(device: str = "cpu") -> EngineStats:
    parallel = SimpleNamespace(tensor_parallel_size=2, pipeline_parallel_size=1)
    return EngineStats(SimpleNamespace(parallel_config=parallel, device_config=SimpleNamespace(device_type=device)))


def step(stats: EngineStats, usage: float, running: int, waiting: int = 0, **more: int) -> None:
    scheduler = SchedulerStats(num_running_reqs=running, num_waiting_reqs=waiting, kv_cache_usage=usage)
    scheduler.prefix_cache_stats.queries = more.get("queries", 0)
    scheduler.prefix_cache_stats.hits = more.get("hits", 0)
    stats.record(scheduler, SimpleNamespace(num_preempted_reqs=more.get("preempted", 0)))


def test_means_are_of_steps_and_counts_of_all_since_the_last_call() -> None:
    stats = stats_of()
    step(stats, 0.25, 4, waiting=3, queries=100, hits=60, preempted=1)
    step(stats, 0.75, 2, queries=100, hits=90, preempted=2)
    step(stats, 0.0, 0)  # of the empty engine
    assert stats.take() == EngineFigures(
        kv_cache_mean=0.5,
        kv_cache_max=0.75,
        preemptions=3,
        prefix_hit_share=0.75,
        running_mean=3.0,
        running_max=4,
        waiting_max=3,
    )
    assert stats.take() == EngineFigures(), "an engine that computed nothing has no figures"


def test_gpus_are_looked_at_while_the_engine_computes_and_not_at_each_step(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[int] = []

    def read(gpus: Gpus) -> None:
        looks.append(gpus._count)
        gpus._bytes, gpus._shares = 7 * 2**30, [*gpus._shares, 0.5]

    monkeypatch.setattr(Gpus, "_read", read)
    stats = stats_of("cuda")
    step(stats, 0.0, 0)
    assert looks == []
    for _ in range(5):
        step(stats, 0.5, 1)
    assert looks == [2], "of both GPUs, once a second"
    found = stats.take()
    assert (found.gpu_memory_bytes, found.gpu_share) == (7 * 2**30, 0.5)
    monkeypatch.setattr(vllm_stats, "LOOK_AT_GPUS_EVERY_S", 0.0)
    monkeypatch.setattr(Gpus, "_read", lambda gpus: 1 / 0)
    for _ in range(3):
        step(stats, 0.5, 1)
    found = stats.take()
    assert (found.gpu_memory_bytes, found.gpu_share) == (None, None), "what cannot be read is left out"
    assert found.kv_cache_max == 0.5

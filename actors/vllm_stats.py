"""What a vLLM engine measures of itself: its KV cache, its requests, and the GPUs that it uses."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger

from spag_ray.results.lines import EngineFigures

log = logging.getLogger(__name__)

LOOK_AT_GPUS_EVERY_S = 1.0  # NVML's own window


@dataclass
class _Sums:
    """Of the steps of an engine."""

    num_steps: int = 0
    preemptions: int = 0
    queries: int = 0
    hits: int = 0
    kv_cache: float = 0.0
    kv_cache_max: float = 0.0
    running: int = 0
    running_max: int = 0
    waiting_max: int = 0


class EngineStats(PrometheusStatLogger):
    """vLLM calls `record` after each step of the engine, in the event loop of whoever asks it. Beside a logger of any
    other class vLLM would make a PrometheusStatLogger of its own, which nobody reads here."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        self._sums, self._is_broken = _Sums(), False
        self._gpus: Gpus | None = None
        with self._harmless():
            parallel = vllm_config.parallel_config
            if vllm_config.device_config.device_type == "cuda":
                self._gpus = Gpus(parallel.tensor_parallel_size * parallel.pipeline_parallel_size)

    @contextlib.contextmanager
    def _harmless(self) -> Iterator[None]:
        """vLLM ends an engine whose statistics raise, and does not promise that they keep their names: the first
        error is logged, and nothing is measured from then on."""
        try:
            yield
        except Exception as error:
            self._is_broken = True
            log.warning("this vLLM's statistics cannot be read and are left out: %s: %s", type(error).__name__, error)

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if not self._is_broken:
            with self._harmless():
                self._record(scheduler_stats, iteration_stats)

    def _record(self, scheduler_stats: Any, iteration_stats: Any) -> None:
        sums = self._sums
        if iteration_stats is not None:
            sums.preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        sums.queries += scheduler_stats.prefix_cache_stats.queries
        sums.hits += scheduler_stats.prefix_cache_stats.hits
        waiting = scheduler_stats.num_waiting_reqs + scheduler_stats.num_skipped_waiting_reqs
        sums.waiting_max = max(sums.waiting_max, waiting)
        running = scheduler_stats.num_running_reqs
        if not running:
            return  # the statistics of the last step are of an empty engine
        sums.num_steps += 1
        sums.kv_cache += scheduler_stats.kv_cache_usage
        sums.kv_cache_max = max(sums.kv_cache_max, scheduler_stats.kv_cache_usage)
        sums.running += running
        sums.running_max = max(sums.running_max, running)
        if self._gpus is not None:
            self._gpus.look()

    def take(self) -> EngineFigures:
        """The figures since the last call; none if the engine computed nothing."""
        sums, self._sums = self._sums, _Sums()
        if not sums.num_steps or self._is_broken:
            return EngineFigures()
        return EngineFigures(
            kv_cache_mean=round(sums.kv_cache / sums.num_steps, 4),
            kv_cache_max=round(sums.kv_cache_max, 4),
            preemptions=sums.preemptions,
            prefix_hit_share=round(sums.hits / sums.queries, 4) if sums.queries else None,
            running_mean=round(sums.running / sums.num_steps, 2),
            running_max=sums.running_max,
            waiting_max=sums.waiting_max,
            **({} if self._gpus is None else self._gpus.take()),
        )

    def log_engine_initialized(self) -> None:
        """Says nothing."""

    def record_sleep_state(self, sleep: int = 0, level: int = 0) -> None:
        """Not counted."""

    def record_admission_rejection(self, reason: str) -> None:
        """Not counted."""


class Gpus:
    """The GPUs of an engine, as NVML sees them while it computes. Asked without a CUDA context of this process, which
    would take memory from the engine."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._looked = float("-inf")
        self._bytes = 0
        self._shares: list[float] = []

    def look(self) -> None:
        """At most once in LOOK_AT_GPUS_EVERY_S."""
        if time.monotonic() - self._looked < LOOK_AT_GPUS_EVERY_S:
            return
        self._looked = time.monotonic()
        try:
            self._read()
        except Exception as error:  # NVML has many; a GPU that is split (MIG) has no utilisation
            log.warning("the GPUs' figures cannot be read and are left out: %s", error)
            self._looked = float("inf")

    def _read(self) -> None:
        import pynvml
        from torch.cuda import _get_pynvml_handler  # knows CUDA_VISIBLE_DEVICES

        handles = [_get_pynvml_handler(index) for index in range(self._count)]
        self._bytes = max(self._bytes, sum(pynvml.nvmlDeviceGetMemoryInfo(handle).used for handle in handles))
        self._shares += [pynvml.nvmlDeviceGetUtilizationRates(handle).gpu / 100 for handle in handles]

    def take(self) -> dict[str, Any]:
        """Fields of EngineFigures, since the last call."""
        found: dict[str, Any] = {"gpu_memory_bytes": self._bytes or None}
        if self._shares:
            found["gpu_share"] = round(sum(self._shares) / len(self._shares), 4)
        self._bytes, self._shares = 0, []
        return found

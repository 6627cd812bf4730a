"""What a vLLM engine measures of itself: its KV cache, its requests, and the GPUs that it uses."""

from __future__ import annotations

import logging
import time
from typing import Any

from vllm.v1.metrics.loggers import PrometheusStatLogger

from spag_ray.results.lines import EngineFigures

log = logging.getLogger(__name__)

LOOK_AT_GPUS_EVERY_S = 1.0  # NVML's own window


class EngineStats(PrometheusStatLogger):  # type: ignore[misc]
    """vLLM calls `record` after each step of the engine, in the event loop of whoever asks it. It would add its own
    PrometheusStatLogger, which nobody reads here, beside loggers of any other class."""

    def __init__(self, vllm_config: Any, engine_indexes: list[int] | None = None) -> None:
        parallel = vllm_config.parallel_config
        self._gpus: Gpus | None = None
        if vllm_config.device_config.device_type == "cuda":
            self._gpus = Gpus(parallel.tensor_parallel_size * parallel.pipeline_parallel_size)
        self._clear()

    def record(
        self, scheduler_stats: Any, iteration_stats: Any, mm_cache_stats: Any = None, engine_idx: int = 0
    ) -> None:
        if iteration_stats is not None:
            self._preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is None:
            return
        prefixes = scheduler_stats.prefix_cache_stats
        self._queries += prefixes.queries
        self._hits += prefixes.hits
        running, waiting = scheduler_stats.num_running_reqs, scheduler_stats.num_waiting_reqs
        self._waiting_max = max(self._waiting_max, waiting + scheduler_stats.num_skipped_waiting_reqs)
        if not running:
            return  # the last step's statistics are of an empty engine
        self._num_steps += 1
        self._kv_sum += scheduler_stats.kv_cache_usage
        self._kv_max = max(self._kv_max, scheduler_stats.kv_cache_usage)
        self._running_sum += running
        self._running_max = max(self._running_max, running)
        if self._gpus is not None:
            self._gpus.look()

    def take(self) -> EngineFigures:
        """The figures since the last call; none if the engine computed nothing."""
        steps, queries = self._num_steps, self._queries
        found = EngineFigures()
        if steps:
            found = EngineFigures(
                kv_cache_mean=round(self._kv_sum / steps, 4),
                kv_cache_max=round(self._kv_max, 4),
                preemptions=self._preemptions,
                prefix_hit_share=round(self._hits / queries, 4) if queries else None,
                running_mean=round(self._running_sum / steps, 2),
                running_max=self._running_max,
                waiting_max=self._waiting_max,
                **({} if self._gpus is None else self._gpus.take()),
            )
        self._clear()
        return found

    def _clear(self) -> None:
        self._num_steps = self._preemptions = self._queries = self._hits = 0
        self._kv_sum = self._kv_max = 0.0
        self._running_sum = self._running_max = self._waiting_max = 0

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

"""What vLLM's worker process needs of ours: the engine side of channels for weights, the models of vllm_models/, and
methods of its own.

vLLM imports this module by name in every worker (`worker_extension_cls`), before the model is built.
"""

from __future__ import annotations

from typing import Any

import spag_ray.channels.engine_side  # noqa: F401  (registers itself with vLLM)
from actors.vllm_models.plugin import register
from spag_ray.host.memory import drop_contents, release_freed_memory


class WorkerExtension:
    """vLLM adds these methods to its worker class; `collective_rpc` calls them."""

    model_runner: Any
    finish_weight_update: Any
    _weight_update_active: bool

    def release_host_memory(self) -> None:
        """Release a sleeping CPU worker's freed memory and the pages of its KV cache, which must be empty."""
        for cache in self.model_runner.kv_caches:
            drop_contents(cache.untyped_storage().data_ptr(), cache.untyped_storage().nbytes())
        release_freed_memory()

    def end_broken_update(self) -> None:
        """Leave an update of which no more parts will come. The weights are incomplete until the next one."""
        if self._weight_update_active:
            self.finish_weight_update()


register()

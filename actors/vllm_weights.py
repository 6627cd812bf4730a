"""New weights inside vLLM's worker process: an engine of its WeightTransferEngine interface that reads buckets from
files in shared memory.

vLLM imports this module by name in every worker (`worker_extension_cls`), before the model is built; importing it
registers the engine, and the models of vllm_models/. One version is one session: start, one `update_weights` call per
bucket, finish. vLLM finalises a layer only at the end of a session, so fused layers (qkv, gate-up) may be split over
buckets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from vllm.distributed.weight_transfer.base import (
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from actors.tensors import tensors_of
from actors.vllm_models.plugin import register
from spag_ray.host.memory import drop_contents, release_freed_memory
from spag_ray.weights.snapshot import Bucket, TensorSpec

BACKEND = "shared_memory"


@dataclass
class SharedMemoryInit(WeightTransferInitInfo):
    """Empty, because each update names its file."""


@dataclass
class SharedMemoryUpdate(WeightTransferUpdateInfo):
    """One bucket: `path` of the file with its bytes, its tensors as (name, dtype, shape, offset, num_bytes)."""

    path: str
    index: int
    checksum: str
    tensors: list[tuple[str, str, tuple[int, ...], int, int]]


class SharedMemoryWeightTransfer(WeightTransferEngine[SharedMemoryInit, SharedMemoryUpdate]):
    """Checks a bucket's bytes, then hands its tensors to the model's own `load_weights`."""

    init_info_cls = SharedMemoryInit
    update_info_cls = SharedMemoryUpdate

    def init_transfer_engine(self, init_info: SharedMemoryInit) -> None:
        pass

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        initialize_layerwise_reload(self.model)

    def finish_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        finalize_layerwise_reload(self.model, self.model_config)
        # A head tied to the embedding gets no tensor of its own, so the reload skips it. But on CPU it computes with a
        # packed copy of the shared weight, which is now outdated.
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)
        release_freed_memory()

    def update_weights(self, update_info: dict[str, Any]) -> None:
        # The base class synchronises torch.accelerator, which CPU builds lack.
        self.receive_weights(self.parse_update_info(update_info))
        if torch.accelerator.is_available():
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: SharedMemoryUpdate) -> None:
        specs = tuple(TensorSpec(*tensor) for tensor in update_info.tensors)
        num_bytes = max(spec.offset + spec.num_bytes for spec in specs)
        # Mapped, not copied: layer-wise loading keeps tensors until their layer is complete, and a deleted file stays
        # in memory while it is mapped.
        payload = torch.from_file(update_info.path, shared=False, size=num_bytes, dtype=torch.uint8)
        Bucket(update_info.index, specs, payload.numpy(), update_info.checksum).verify()
        self.model.load_weights((name, tensor.to(self.device)) for name, tensor in tensors_of(payload, specs))

    def shutdown(self) -> None:
        pass


class WorkerExtension:
    """vLLM adds these methods to its worker class; `collective_rpc` calls them."""

    model_runner: Any

    def release_host_memory(self) -> None:
        """Release a sleeping CPU worker's freed memory and the pages of its KV cache, which must be empty."""
        for cache in self.model_runner.kv_caches:
            drop_contents(cache.untyped_storage().data_ptr(), cache.untyped_storage().nbytes())
        release_freed_memory()


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, SharedMemoryWeightTransfer)
register()

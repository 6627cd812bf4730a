"""The weight-transfer engine of vLLM that every engine of ours has, whatever its channel.

vLLM fixes an engine's backend when the engine starts. This one always loads buckets (buckets.py), so that saved weights
and any version from the object store can be loaded, and hands the updates of the run's channel to that channel's
Receiver. One version is one session: start, any number of updates, finish. vLLM finalises a layer only at the end of a
session, so fused layers (qkv, gate-up) may be split over updates.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from vllm.distributed.weight_transfer.base import WeightTransferEngine, WeightTransferInitInfo, WeightTransferUpdateInfo
from vllm.distributed.weight_transfer.factory import WeightTransferEngineFactory
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

from spag_ray.channels.base import Receiver, find
from spag_ray.channels.buckets import tensors_in
from spag_ray.errors import WeightSyncError
from spag_ray.host.memory import release_freed_memory

BACKEND = "spag_ray"
_RELOAD_LOGGER = "vllm.model_executor.model_loader.reload.layerwise"
_NOT_LOADED = "%s: Failed to load weights"  # vLLM's line; its argument is the name of a layer's class


@dataclass
class Opening(WeightTransferInitInfo):
    """The channel to open, and what its sender tells the receiver."""

    channel: str
    told: dict[str, Any]


class EngineSide(WeightTransferEngine[Opening, WeightTransferUpdateInfo]):
    """See the module's docstring."""

    init_info_cls = Opening

    def __init__(self, *worker: Any) -> None:
        super().__init__(*worker)
        self._worker = worker
        self._receiver: Receiver | None = None
        self._is_in_session = False
        self._without_weights = layers_without_weights(self.model)
        self._kernels: dict[Any, Any] = {}

    def init_transfer_engine(self, init_info: Opening) -> None:
        self.shutdown()
        if (receiver := getattr(find(init_info.channel), "receiver", None)) is not None:
            made = receiver(*self._worker)
            made.open(init_info.told)
            self._receiver = made

    def start_weight_update(self) -> None:
        from vllm.model_executor.model_loader.reload import initialize_layerwise_reload

        if self._is_in_session:
            # The last version did not arrive whole. Its tensors still count as loaded for their layers, which would
            # then be finalised before the rest of the new version has come.
            self._finalize()
        self._is_in_session = True
        # On a CPU the kernel of experts packs their weights when it is made, and would take those of a reload for
        # packed ones. On a GPU it takes them as they are, and CUDA graphs hold it.
        self._kernels = expert_kernels(self.model) if self.device.type == "cpu" else {}
        for method in self._kernels:
            method.moe_kernel = None
        initialize_layerwise_reload(self.model)

    def update_weights(self, update_info: dict[str, Any]) -> None:
        """Load one update: a bucket, or what the channel's sender sent. Raises WeightSyncError."""
        if "bucket" in update_info:
            self.model.load_weights((name, tensor.to(self.device)) for name, tensor in tensors_in(update_info))
        elif self._receiver is not None:
            self._receiver.receive(update_info)
        else:
            raise WeightSyncError("this engine was sent weights on a channel that it has not opened")
        if torch.accelerator.is_available():  # CPU builds have none
            torch.accelerator.synchronize()

    def receive_weights(self, update_info: WeightTransferUpdateInfo) -> None:
        raise AssertionError("update_weights hands every update on")

    def finish_weight_update(self) -> None:
        self._finalize()
        self._is_in_session = False
        if self._receiver is not None:
            self._receiver.finish()
        release_freed_memory()

    def _finalize(self) -> None:
        from vllm.model_executor.model_loader.reload import finalize_layerwise_reload

        with without_expected_warnings(self._without_weights):
            finalize_layerwise_reload(self.model, self.model_config)
        for method, kernel in self._kernels.items():
            method.moe_kernel = method.moe_kernel or kernel  # that of a layer without new weights
        # A head tied to the embedding gets no tensor of its own, so the reload skips it. But on CPU it computes with a
        # packed copy of the shared weight, which is now outdated.
        for module in self.model.modules():
            if isinstance(module, ParallelLMHead):
                module.quant_method.process_weights_after_loading(module)

    def shutdown(self) -> None:
        if self._receiver is not None:
            self._receiver.close()
            self._receiver = None


def expert_kernels(model: nn.Module) -> dict[Any, Any]:
    """The kernel of each mixture of experts, by the method that has it."""
    methods: list[Any] = [getattr(module, "quant_method", None) for module in model.modules()]
    return {method: method.moe_kernel for method in methods if getattr(method, "moe_kernel", None) is not None}


def layers_without_weights(model: nn.Module) -> frozenset[str]:
    """Names of the classes of layers for which no checkpoint has a tensor: what they have is computed (the table of a
    rotary embedding), or belongs to another layer (a head tied to the embedding)."""
    owners: dict[int, nn.Module] = {}
    with_weights: set[str] = set()
    without: set[str] = set()
    for module in model.modules():
        own = dict(module.named_parameters(recurse=False, remove_duplicate=False))
        own |= module.named_buffers(recurse=False)
        saved = [tensor for name, tensor in own.items() if name not in module._non_persistent_buffers_set]
        has_weights = any(owners.setdefault(id(tensor), module) is module for tensor in saved)
        (with_weights if has_weights else without).add(type(module).__name__)
    return frozenset(without - with_weights)


@contextlib.contextmanager
def without_expected_warnings(layers: frozenset[str]) -> Iterator[None]:
    """vLLM warns at every reload of each layer that got no weights; keep its line for layers that should have got
    some."""

    def is_news(record: logging.LogRecord) -> bool:
        is_expected = isinstance(record.args, tuple) and record.args[:1] and record.args[0] in layers
        return not (record.msg == _NOT_LOADED and is_expected)

    logger = logging.getLogger(_RELOAD_LOGGER)
    logger.addFilter(is_news)
    try:
        yield
    finally:
        logger.removeFilter(is_news)


if BACKEND not in WeightTransferEngineFactory._registry:
    WeightTransferEngineFactory.register_engine(BACKEND, EngineSide)

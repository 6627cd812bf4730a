"""What an engine's layers compute with, as its worker sees it: also where a layer keeps a packed copy of its weight."""

from typing import Any

import torch
from vllm.model_executor.layers.linear import LinearBase
from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead, VocabParallelEmbedding

from actors.vllm_weights import WorkerExtension


class SeesWeights(WorkerExtension):
    def seen_weights(self) -> dict[str, tuple[list[int], bytes]]:
        """{layer: (shape, float32 bytes) of its weight, and of each of its buffers}"""
        found: dict[str, torch.Tensor] = {}
        for name, layer in self.model_runner.get_model().named_modules():
            if isinstance(layer, (LinearBase, ParallelLMHead)):
                found[name] = computed_with(layer)
            elif isinstance(layer, VocabParallelEmbedding) or "weight" in dict(layer.named_parameters(recurse=False)):
                found[name] = layer.weight
            for buffer_name, buffer in layer.named_buffers(recurse=False):
                found[f"{name}.{buffer_name}"] = buffer
        return {
            name: (list(tensor.shape), tensor.detach().float().contiguous().numpy().tobytes())
            for name, tensor in found.items()
        }


def computed_with(layer: Any) -> torch.Tensor:
    """The weight [outputs, inputs] of a linear layer, from what it makes of the identity."""
    width = layer.embedding_dim if isinstance(layer, ParallelLMHead) else layer.input_size
    weight: torch.Tensor = layer.quant_method.apply(layer, torch.eye(width))
    return weight.t()

"""The Llama with ALiBi of spag_ray/families/alibi_llama.py for vLLM: its Llama with another attention."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from vllm.config import CacheConfig, VllmConfig
from vllm.distributed import get_tensor_model_parallel_rank, get_tensor_model_parallel_world_size
from vllm.model_executor.layers.attention import Attention
from vllm.model_executor.layers.linear import QKVParallelLinear, RowParallelLinear
from vllm.model_executor.layers.quantization import QuantizationConfig
from vllm.model_executor.models.llama import LlamaDecoderLayer, LlamaForCausalLM

from spag_ray.families.alibi_llama import AlibiLlamaConfig, alibi_slopes


class AlibiAttention(nn.Module):
    """Each tensor-parallel rank has num_heads / world size heads, and their slopes. The other arguments of vLLM's
    LlamaAttention are ignored: they are about rotary positions and biases."""

    def __init__(
        self,
        *,
        hidden_size: int,
        num_heads: int,
        num_kv_heads: int,
        prefix: str,
        cache_config: CacheConfig | None = None,
        quant_config: QuantizationConfig | None = None,
        **_: Any,
    ) -> None:
        super().__init__()
        assert num_kv_heads == num_heads, "no head shares its keys"
        head_dim = hidden_size // num_heads
        heads_here = num_heads // get_tensor_model_parallel_world_size()
        first = get_tensor_model_parallel_rank() * heads_here
        self.qkv_proj = QKVParallelLinear(
            hidden_size, head_dim, num_heads, bias=False, quant_config=quant_config, prefix=f"{prefix}.qkv_proj"
        )
        self.o_proj = RowParallelLinear(
            hidden_size, hidden_size, bias=False, quant_config=quant_config, prefix=f"{prefix}.o_proj"
        )
        self.attn = Attention(
            heads_here,
            head_dim,
            head_dim**-0.5,
            alibi_slopes=alibi_slopes(num_heads)[first : first + heads_here],
            cache_config=cache_config,
            quant_config=quant_config,
            prefix=f"{prefix}.attn",
        )

    def forward(self, positions: torch.Tensor, hidden_states: torch.Tensor) -> torch.Tensor:
        qkv, _ = self.qkv_proj(hidden_states)
        output, _ = self.o_proj(self.attn(*qkv.chunk(3, dim=-1)))
        return output


class AlibiDecoderLayer(LlamaDecoderLayer):
    def __init__(self, vllm_config: VllmConfig, prefix: str = "", config: AlibiLlamaConfig | None = None) -> None:
        super().__init__(vllm_config, prefix, config, attn_layer_type=AlibiAttention)


class AlibiLlamaForCausalLM(LlamaForCausalLM):
    def __init__(self, *, vllm_config: VllmConfig, prefix: str = "") -> None:
        super().__init__(vllm_config=vllm_config, prefix=prefix, layer_type=AlibiDecoderLayer)

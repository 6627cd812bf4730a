"""A Llama with ALiBi (arXiv 2108.12409) in place of rotary positions: Baichuan2-13B, once it is converted.

The score of query i and key j <= i in head h is q_i k_j / sqrt(head_dim) - slope_h (i - j). The weights have Llama's
names and shapes. The class for vLLM is in actors/vllm_models/.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM, LlamaModel

from spag_ray.families.torch_free import AlibiLlamaConfig


def alibi_slopes(num_heads: int) -> list[float]:
    """[heads] the slope of each head: with n the largest power of two <= num_heads, 2^(-8 k/n) for k = 1 .. n, then
    2^(-4 k/n) for odd k (as in BLOOM).

    >>> alibi_slopes(2), alibi_slopes(3)
    ([0.0625, 0.00390625], [0.0625, 0.00390625, 0.25])
    """
    power = 2 ** math.floor(math.log2(num_heads))
    slopes = [2.0 ** (-8 * k / power) for k in range(1, power + 1)]
    return slopes + [2.0 ** (-4 * k / power) for k in range(1, 2 * (num_heads - power), 2)]


class AlibiLlamaModel(LlamaModel):
    config_class = AlibiLlamaConfig

    def __init__(self, config: AlibiLlamaConfig) -> None:
        super().__init__(config)
        self.rotary_emb = _NoRotation(config.head_dim)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Any = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> Any:
        """attention_mask: [batch, keys], 0 at padding. Everything else as in Llama."""
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        num_queries = inputs_embeds.shape[1]
        num_keys = num_queries + (0 if past_key_values is None else past_key_values.get_seq_length())
        bias = _attention_bias(self.config.num_attention_heads, num_queries, num_keys, attention_mask, inputs_embeds)
        return super().forward(
            attention_mask=bias, past_key_values=past_key_values, inputs_embeds=inputs_embeds, **kwargs
        )


class AlibiLlamaForCausalLM(LlamaForCausalLM):
    config_class = AlibiLlamaConfig
    # They take no tensor of biases, unlike `eager` and `sdpa`.
    _supports_flash_attn = False
    _supports_flex_attn = False

    def __init__(self, config: AlibiLlamaConfig) -> None:
        super().__init__(config)
        self.model = AlibiLlamaModel(config)
        self.post_init()


class _NoRotation(nn.Module):
    """The cosines and sines of a rotation by zero, [1, 1, head_dim] each."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self._head_dim = head_dim

    def forward(self, hidden: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        return hidden.new_ones(1, 1, self._head_dim), hidden.new_zeros(1, 1, self._head_dim)


def _attention_bias(num_heads: int, num_queries: int, num_keys: int, mask: Tensor | None, like: Tensor) -> Tensor:
    """[1 or batch, heads, queries, keys] in the dtype and on the device of `like`: what is added to the scores. The
    queries are the last of the keys."""
    keys = torch.arange(num_keys, device=like.device)
    distance = keys[None, :] - keys[num_keys - num_queries :, None]
    slopes = torch.tensor(alibi_slopes(num_heads), dtype=torch.float64).to(like)
    unseen = max(torch.finfo(like.dtype).min, torch.finfo(torch.float32).min)
    bias = (slopes[:, None, None] * distance).masked_fill(distance > 0, unseen)[None]
    # No token sees padding to its right, so the bias of such rows is the same for the whole batch.
    if mask is not None and bool((mask[:, 1:] > mask[:, :-1]).any()):
        bias = bias.masked_fill(mask[:, None, None, :] == 0, unseen)
    return bias

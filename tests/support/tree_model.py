"""A model that reads token trees exactly, and what it makes of a batch in one tree and sample by sample."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from learners.attention import TREE
from learners.batch import BatchLoss
from learners.forward import token_logprobs_and_entropies
from learners.head import TargetHead
from learners.packing import TokenSample, TokenTree, pack
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.training_data.shares import Batch


def make_tree_model() -> Any:
    """Random weights in float64; transformers' RMSNorm computes in float32, torch's does not."""
    torch.manual_seed(0)
    shape = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2}
    config = LlamaConfig(**shape, num_attention_heads=4, num_key_value_heads=2, initializer_range=0.3)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float64)
    for name, module in list(model.named_modules()):
        if type(module).__name__.endswith("RMSNorm"):
            norm = torch.nn.RMSNorm(module.weight.shape, eps=module.variance_epsilon, dtype=torch.float64)
            model.set_submodule(name, norm)
    model.set_attn_implementation(TREE)
    TargetHead.install(model)
    return model


def check_same_in_a_tree(
    model: Any, batch: Batch, objective: ObjectiveConfig, listening_coeff: float = 0.0, temperature: float = 1.7
) -> tuple[TokenTree, float]:
    """The loss and the gradient of a self-play batch are the same from one tree as from its samples one at a time, to
    1e-9; the turns at `temperature`, all else at 1. Gives that tree and the loss."""
    items = batch.items
    samples = [TokenSample(item.turn.prompt_ids, item.turn.target_ids) for item in items]

    def loss(of: list[list[int]]) -> tuple[float, torch.Tensor]:
        model.zero_grad()
        whole = 0.0
        for indices in of:
            (tree,) = pack([samples[index] for index in indices], 200)
            chosen = [items[indices[place]] for place in tree.sample_indices]
            at = [item.temperature(temperature) for item in chosen]
            logprobs, entropies = token_logprobs_and_entropies(model, tree, at)
            part = BatchLoss(batch, "self_play", objective, 0.2, at_start=True, listening_coeff=listening_coeff)
            value = part.of(chosen, logprobs, entropies)
            value.backward()
            whole += value.item()
        return whole, torch.cat([parameter.grad.flatten().clone() for parameter in model.parameters()])

    together, gradient = loss([list(range(len(items)))])
    alone, other = loss([[index] for index in range(len(items))])
    assert abs(together - alone) <= 1e-9
    assert (gradient - other).norm() <= 1e-9 * other.norm()
    (tree,) = pack(samples, 200)
    return tree, together

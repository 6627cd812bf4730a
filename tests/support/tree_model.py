"""A model that reads token trees exactly, and what it makes of a batch in one tree and sample by sample."""

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from learners.attention import TREE
from learners.forward import token_logprobs_and_entropies
from learners.head import TargetHead
from learners.packing import TokenTree, pack
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.training_data.terms import Rows
from tests.support.losses import Trained


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
    spec = StageSpec("self_play", 1, 0.0, 0.2, listening_coeff, temperature)
    rows = Rows.of(batch, objective, spec)

    def loss(parts: list[list[int]]) -> tuple[float, torch.Tensor]:
        model.zero_grad()
        found: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        for part in parts:
            (tree,) = pack([rows.samples[index] for index in part], 200)
            order = [part[place] for place in tree.sample_indices]
            both = token_logprobs_and_entropies(model, tree, rows.temperatures[order].tolist())
            found |= dict(zip(order, zip(*(each.split(tree.lengths) for each in both), strict=True), strict=True))
        logprobs, entropies = zip(*(found[index] for index in range(len(found))), strict=True)
        whole = Trained.of(batch, objective, spec, logprobs, entropies, at_start=True, parts=parts).loss.item()
        return whole, torch.cat([parameter.grad.flatten().clone() for parameter in model.parameters()])

    every = list(range(len(rows.samples)))
    together, gradient = loss([every])
    alone, other = loss([[index] for index in every])
    assert abs(together - alone) <= 1e-9
    assert (gradient - other).norm() <= 1e-9 * other.norm()
    (tree,) = pack(rows.samples, 200)
    return tree, together

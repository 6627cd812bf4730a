"""A model that reads token trees exactly."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from learners.attention import TREE
from learners.head import TargetHead


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

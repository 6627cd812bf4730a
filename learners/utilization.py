"""How much of its GPUs' arithmetic a learner uses (model FLOPs utilisation, MFU: arXiv 2204.02311, appendix B).

    MFU = FLOPs that the model needs for a step / (seconds of the step x matrix rate of a GPU x GPUs)

A weight needs 2 FLOPs for each token forward, 2 for the gradient of its input and 2 for its own gradient, if it is
trained. The layers are counted for every distinct token, the head for the tokens that are trained on. Attention itself
is left out: at 1,000 tokens of context it adds 7 % to a model of 1.5e9 weights. So are operations that a
model does not need: a forward pass that gradient checkpointing repeats, padding that a kernel adds.
"""

from __future__ import annotations

import contextlib
import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from spag_ray.host.cpu_features import fast_dtype

FORWARD_AND_INPUT_GRADIENT, WEIGHT_GRADIENT = 4.0, 2.0  # FLOPs for each weight and token
SIDE = 8192  # of the square matrices that show what a GPU can do


@dataclass(frozen=True)
class StepCost:
    """FLOPs of forward and backward: of the layers for each token, of the head for each target token."""

    per_token: float
    per_target_token: float

    @classmethod
    def of(cls, module: nn.Module) -> StepCost:
        """Of a model as transformers has it; its weights may be divided over ranks (ZeRO-3). The token embeddings are
        looked up, not multiplied, so they count only where they are the head as well. Of a mixture of experts, those
        count that one token is given to."""
        config = module.config.get_text_config()
        num_experts = getattr(config, "num_experts", None) or getattr(config, "num_local_experts", None) or 1
        used = getattr(config, "num_experts_per_tok", None) or num_experts
        head = module.get_output_embeddings()
        embeddings = module.get_input_embeddings()
        of_head = 0.0 if head is None else _flops(head.weight)
        apart = {id(layer.weight) for layer in (head, embeddings) if layer is not None}
        of_layers = sum(
            _flops(parameter) * (used / num_experts if ".experts." in name else 1.0)
            for name, parameter in module.named_parameters()
            if id(parameter) not in apart
        )
        return cls(of_layers, of_head)

    def flops(self, num_tokens: float, num_target_tokens: float) -> float:
        return self.per_token * num_tokens + self.per_target_token * num_target_tokens


def _flops(parameter: nn.Parameter) -> float:
    count: int = getattr(parameter, "ds_numel", parameter.numel())  # DeepSpeed empties the weights that it divides
    return count * (FORWARD_AND_INPUT_GRADIENT + WEIGHT_GRADIENT * parameter.requires_grad)


@dataclass(frozen=True)
class Utilization:
    """`matrix_rate`: bfloat16 FLOP/s of one GPU, measured; `num_gpus`: of the learner group, one for each rank."""

    cost: StepCost
    matrix_rate: float
    num_gpus: int

    def mfu(self, num_tokens: float, num_target_tokens: float, seconds: float) -> float:
        """Between 0 and 1, over all ranks' tokens."""
        return self.cost.flops(num_tokens, num_target_tokens) / (seconds * self.matrix_rate * self.num_gpus)


def matrix_rate(device: torch.device, shape: tuple[int, int, int] = (SIDE, SIDE, SIDE), budget_s: float = 0.2) -> float:
    """FLOP/s of products [m, k] @ [k, n] of `shape` (m, k, n), in bfloat16 or what a CPU is faster in: the best of what
    fits in about `budget_s`. On a GPU it takes 0.4 GB, which is given back."""
    on_gpu = device.type == "cuda"
    dtype = getattr(torch, fast_dtype(on_gpu=on_gpu))
    # They are started one after the other and timed together, so that a GPU does not wait for the host.
    products = 5 if on_gpu else 1
    rows, inner, columns = shape
    best, until = 0.0, None
    with torch.cuda.device(device) if on_gpu else contextlib.nullcontext():
        left = torch.randn(rows, inner, device=device, dtype=dtype)
        right = torch.randn(inner, columns, device=device, dtype=dtype)
        while until is None or time.perf_counter() < until:
            began = moment(device)
            for _ in range(products):
                left @ right
            ended = moment(device)
            if on_gpu:
                torch.cuda.synchronize()
            if until is None:  # the first round loads the kernels, and does not count
                until = time.perf_counter() + budget_s
            else:
                best = max(best, products * 2 * rows * inner * columns / seconds_between(began, ended))
        del left, right
        if on_gpu:
            torch.cuda.empty_cache()
    return best


def moment(device: torch.device) -> Any:
    """When a device has done all that it was given until now; for a CPU that is now."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(began: Any, ended: Any) -> float:
    """Two moments of one device, of which the last has passed: it was waited for."""
    return float(ended - began if isinstance(began, float) else began.elapsed_time(ended) / 1000)

"""Gradients of DeepSpeed's optimisers: with ZeRO-1 in bfloat16 in one flat tensor beside the flat weights, with ZeRO-2
freed when they have been added up, and their norm taken at once.

With ZeRO-1 DeepSpeed adds each parameter's gradient to the float32 ones, takes its norm and scales it by itself:
several kernels a parameter and step, each of which costs the host more time than the GPU where a model is small. Over
flat tensors it is one of each, and the sums are the same; only the gradient's norm is added up in another order.
"""

from __future__ import annotations

from typing import Any

import deepspeed.comm
import torch

_EXACT_NUMBERS = 1 << 16


def flatten_gradients(optimizer: Any) -> None:
    """`optimizer`: a BF16_Optimizer (deepspeed/runtime/bf16_optimizer.py, 0.19.8), of which five methods are replaced:
    backward passes add to views of flat tensors."""
    own = [torch.zeros_like(weights) for weights in optimizer.bf16_groups_flat]  # bfloat16, of one backward pass
    summed = optimizer.fp32_groups_gradients_flat
    views: list[tuple[torch.nn.Parameter, torch.Tensor]] = []
    for flat, group in zip(own, optimizer.bf16_groups, strict=True):
        sizes = [parameter.numel() for parameter in group]
        parts = flat[: sum(sizes)].split(sizes)  # what follows is padding
        views += [(parameter, part.view_as(parameter)) for parameter, part in zip(group, parts, strict=True)]

    def clear_own(set_to_none: bool = False) -> None:
        for flat in own:
            flat.zero_()
        for parameter, view in views:
            parameter.grad = view

    @torch.no_grad()
    def add_to_sums(clear_lp_grads: bool = False) -> None:
        for flat, total in zip(own, summed, strict=True):
            total.add_(flat)

    def clear_sums() -> None:
        for total in summed:
            total.zero_()

    def for_norm(for_clipping: bool = False) -> Any:
        return list(summed) if for_clipping else ([part for total in summed for part in exact_parts(total)], {})

    optimizer.clear_lp_grads = clear_own
    optimizer.zero_grad = lambda *_, **__: None  # a step has cleared the sums, and the next pass clears its own
    optimizer.update_hp_grads = add_to_sums
    optimizer.clear_hp_grads = clear_sums
    optimizer.get_grads_for_norm = for_norm
    clear_own()


def exact_parts(flat: torch.Tensor) -> list[torch.Tensor]:
    """Parts of which the norms are exact: on a CPU torch adds the squares of a long float32 tensor up one by one, and
    the norm of 5e8 numbers is a tenth to a third too small."""
    return list(flat.split(_EXACT_NUMBERS)) if flat.is_cpu else [flat]


def free_added_gradients(optimizer: Any) -> None:
    """`optimizer`: a DeepSpeedZeroOptimizer of stage 2 (deepspeed/runtime/zero/stage_1_and_2.py, 0.19.8). Of its own
    partition it keeps each gradient that is larger than a bucket until the backward pass ends, although the float32
    sums have it: with 7e9 weights 12 GiB on a single rank."""
    add = optimizer.copy_grads_in_partition

    def add_and_free(parameter: torch.nn.Parameter, group: int) -> None:
        add(parameter, group)
        if optimizer._use_compact_grad_partition_buffer(group):  # it has float32 sums
            parameter.grad = None

    optimizer.copy_grads_in_partition = add_and_free


def take_norm_at_once(optimizer: Any) -> None:
    """`optimizer`: as above. It would take the norm of each gradient by itself, of a float64 copy: two kernels and more
    for each parameter. Its float32 sums are views of one flat tensor, padded with zeros."""
    of_each = optimizer.get_grad_norm_direct

    def of_all(gradients: Any, parameters: Any, norm_type: int = 2) -> torch.Tensor:
        flat = getattr(gradients, "flat_partition", None)
        if flat is None:
            found: torch.Tensor = of_each(gradients, parameters, norm_type)
            return found
        squared = torch.stack(torch._foreach_norm(exact_parts(flat))).norm().square()
        deepspeed.comm.all_reduce(squared, group=optimizer.dp_process_group)
        return squared.sqrt()

    optimizer.get_grad_norm_direct = of_all

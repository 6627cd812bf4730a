"""Flat gradients of an optimiser that stands for DeepSpeed's; the real one: tests/integration/test_optimiser_step.py"""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from learners.flat_gradients import flatten_gradients, free_added_gradients, take_norm_at_once


def optimizer_of(*groups: list[nn.Parameter], padding: int = 1) -> Any:
    """As BF16_Optimizer keeps them: flat weights and float32 gradients, each with padding at its end."""
    lengths = [sum(each.numel() for each in group) + padding for group in groups]
    return SimpleNamespace(
        bf16_groups=list(groups),
        bf16_groups_flat=[torch.zeros(length, dtype=torch.bfloat16) for length in lengths],
        fp32_groups_gradients_flat=[torch.zeros(length) for length in lengths],
    )


def parameters(*shapes: tuple[int, ...]) -> list[nn.Parameter]:
    return [nn.Parameter(torch.ones(shape, dtype=torch.bfloat16)) for shape in shapes]


def test_backward_passes_add_to_the_flat_sums_in_the_order_of_the_parameters() -> None:
    (first, second), (third,) = parameters((2, 2), (3,)), parameters((2,))
    optimizer = optimizer_of([first, second], [third])
    flatten_gradients(optimizer)
    for scale in (1.0, 2.0):  # two micro-steps
        optimizer.clear_lp_grads()
        (scale * (first.sum() + 10 * second.sum())).backward()
        optimizer.update_hp_grads(clear_lp_grads=False)
    one, other = optimizer.fp32_groups_gradients_flat
    assert one.tolist() == [3.0] * 4 + [30.0] * 3 + [0.0]
    assert other.tolist() == [0.0] * 3, "an unused parameter has a gradient of zero"
    assert one.dtype == torch.float32


def test_after_a_step_no_gradient_is_left_and_the_next_pass_adds_to_the_same_tensors() -> None:
    (only,) = parameters((2,))
    optimizer = optimizer_of([only], padding=0)
    flatten_gradients(optimizer)
    only.sum().backward()
    optimizer.update_hp_grads()
    optimizer.clear_lp_grads(set_to_none=True)
    optimizer.clear_hp_grads()
    assert only.grad is not None
    assert only.grad.tolist() == optimizer.fp32_groups_gradients_flat[0].tolist() == [0.0, 0.0]
    (3 * only.sum()).backward()
    optimizer.update_hp_grads()
    assert optimizer.fp32_groups_gradients_flat[0].tolist() == [3.0, 3.0]


def test_norm_and_clipping_are_given_one_tensor_for_each_group() -> None:
    optimizer = optimizer_of(parameters((2,), (5,)), parameters((1,)))
    flatten_gradients(optimizer)
    for_norm, of_experts = optimizer.get_grads_for_norm()
    clipped = optimizer.get_grads_for_norm(for_clipping=True)
    assert of_experts == {}
    assert [len(each) for each in for_norm] == [len(each) for each in clipped] == [8, 2]
    clipped[0].add_(1.0)
    assert optimizer.fp32_groups_gradients_flat[0].sum() == 8.0, "they are scaled in place"


def test_the_norm_of_long_sums_is_exact() -> None:
    """On a CPU that of as many equal numbers is 2 % too small, if they are added up in one call."""
    optimizer = optimizer_of([], padding=1 << 27)
    flatten_gradients(optimizer)
    (summed,) = optimizer.fp32_groups_gradients_flat
    summed.fill_(1e-4)
    parts, _ = optimizer.get_grads_for_norm()
    exact = 1e-4 * 2**13.5
    assert torch.stack([part.norm() for part in parts]).norm() == pytest.approx(exact, rel=1e-4)
    of_zero2: Any = SimpleNamespace(get_grad_norm_direct=None, dp_process_group=None)
    take_norm_at_once(of_zero2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("deepspeed.comm.all_reduce", lambda *_, **__: None)
        assert of_zero2.get_grad_norm_direct(SimpleNamespace(flat_partition=summed), []) == pytest.approx(
            exact, rel=1e-4
        )


def test_a_gradient_is_freed_when_the_float32_sums_have_it() -> None:
    first, second = parameters((2,), (2,))
    added: list[Any] = []
    optimizer: Any = SimpleNamespace(
        copy_grads_in_partition=lambda each, group: added.append((each.grad, group)),
        _use_compact_grad_partition_buffer=lambda group: group == 0,  # group 1 has no such sums
    )
    free_added_gradients(optimizer)
    (first.sum() + second.sum()).backward()
    for group, each in enumerate((first, second)):
        optimizer.copy_grads_in_partition(each, group)
    assert [(grad.tolist(), group) for grad, group in added] == [([1.0, 1.0], 0), ([1.0, 1.0], 1)]
    assert first.grad is None
    assert second.grad is not None


def test_the_norm_is_that_of_all_ranks_flat_sums_where_there_are_such(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("deepspeed.comm.all_reduce", lambda squared, group: squared.mul_(4))  # four ranks with the same
    optimizer: Any = SimpleNamespace(get_grad_norm_direct=lambda *_: torch.tensor(7.0), dp_process_group=None)
    take_norm_at_once(optimizer)
    flat = torch.tensor([3.0, 4.0, 0.0])
    assert optimizer.get_grad_norm_direct(SimpleNamespace(flat_partition=flat), []) == 10.0
    assert optimizer.get_grad_norm_direct([flat], []) == 7.0

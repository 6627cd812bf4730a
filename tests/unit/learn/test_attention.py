"""Attention over trees as a GPU computes it, as far as a CPU can say: how often it is traced. test_packing.py has the
rest: what it computes."""

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention
from transformers import LlamaConfig

from learners import attention
from learners.attention import TreeAttention, check_compiles, flex_block_mask, tree_attention_forward
from spag_ray.errors import LearnerError

LENGTHS = (40, 100, 128, 129, 200, 256, 300, 500, 64, 384, 450, 512)
MODEL = LlamaConfig(hidden_size=64, num_attention_heads=4, num_key_value_heads=2)


@pytest.fixture
def graphs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[], int]]:
    """How many graphs the attention was traced to. Nothing is generated from them (`aot_eager`), and a CPU may go
    backward, which it refuses otherwise, though it has the formulas."""
    compiled = torch.compile
    monkeypatch.setattr(torch, "compile", partial(compiled, backend="aot_eager"))
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    attend = attention._compiled_flex_attention.__wrapped__()
    monkeypatch.setattr(attention, "flex_attention", attend)
    monkeypatch.setattr(attention, "_compiled_flex_attention", lambda: attend)
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def attend_in_a_tree(num_tokens: int, with_gradient: bool) -> None:
    """A root with two branches."""
    half = num_tokens // 2
    ends = torch.tensor([num_tokens, *[half] * (half - 1), *[num_tokens] * (num_tokens - half)])
    query, key, value = (torch.randn(1, heads, num_tokens, 16, requires_grad=with_gradient) for heads in (4, 2, 2))
    plan = TreeAttention(block_mask=flex_block_mask(ends))
    with torch.set_grad_enabled(with_gradient):
        out, _ = tree_attention_forward(torch.nn.Module(), query, key, value, None, scaling=0.25, tree_attention=plan)
        if with_gradient:
            out.sum().backward()


def test_a_gpu_traces_attention_four_times_whatever_the_lengths(graphs: Callable[[], int]) -> None:
    for with_gradient in (True, False):
        for num_tokens in LENGTHS:
            attend_in_a_tree(num_tokens, with_gradient)

    assert graphs() == 4, "one block or several, with and without gradient"
    assert graphs() < torch._dynamo.config.recompile_limit


def test_a_gpu_traces_the_mask_twice_for_any_length(graphs: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    compiled, plain = attention._compiled_block_mask.__wrapped__(), attention._block_mask
    for num_tokens in LENGTHS:
        half = num_tokens // 2
        ends = torch.tensor([num_tokens, *[half] * (half - 1), *[num_tokens] * (num_tokens - half)])
        mine, expected = compiled(ends), plain(ends)
        assert torch.equal(mine.to_dense(), expected.to_dense())
        assert torch.equal(mine.full_kv_num_blocks, expected.full_kv_num_blocks)
        assert mine.BLOCK_SIZE == expected.BLOCK_SIZE == (attention.FLEX_BLOCK_TOKENS,) * 2
    assert graphs() == 2, "one block or several"

    monkeypatch.setattr(attention, "_block_mask", compiled)
    for num_tokens in LENGTHS:
        attend_in_a_tree(num_tokens, with_gradient=True)
    assert graphs() == 4, "attention under a compiled mask is traced no more often"


def test_a_mask_is_compiled_on_a_gpu_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attention, "_compiled_block_mask", lambda: lambda _: "compiled")
    assert flex_block_mask(cast(torch.Tensor, SimpleNamespace(is_cuda=True))) == "compiled"
    assert flex_block_mask(torch.tensor([2, 2])) != "compiled"


def test_a_trace_too_many_is_an_error_and_not_a_slow_run(graphs: Callable[[], int]) -> None:
    with torch._dynamo.config.patch(recompile_limit=1):
        attend_in_a_tree(64, with_gradient=False)
        with pytest.raises(torch._dynamo.exc.FailOnRecompileLimitHit):
            attend_in_a_tree(300, with_gradient=False)


def test_attention_that_compiles_is_no_reason_to_stop(graphs: Callable[[], int]) -> None:
    check_compiles(MODEL, torch.float32, torch.device("cpu"))

    assert graphs() == 1


def test_attention_that_does_not_compile_is_said_before_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def attend(*_: Any, **__: Any) -> None:
        raise RuntimeError("Failed to find C compiler.\nmore of it")

    monkeypatch.setattr(attention, "_compiled_flex_attention", lambda: attend)

    with pytest.raises(LearnerError, match=r"learner\.packing: none, or fix it: Failed to find C compiler\.$"):
        check_compiles(MODEL, torch.float32, torch.device("cpu"))

"""Compiled decoder layers: the same numbers, one compilation for all layers and lengths."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch._dynamo.utils import counters
from torch.nn.attention import flex_attention
from transformers import LlamaConfig, LlamaForCausalLM

from learners import attention, engine, forward
from learners.attention import TREE, TreeAttention, flex_block_mask
from learners.deepspeed_config import deepspeed_config
from learners.engine import compile_layers
from learners.forward import token_logprobs
from learners.head import TargetHead
from learners.packing import pack, pad
from spag_ray.config.parts import LearnerConfig
from spag_ray.errors import ConfigError, LearnerError
from spag_ray.training_data.samples import Sample

pytestmark = pytest.mark.parallel

LENGTHS = (30, 47, 150, 290, 81, 200)


@pytest.fixture
def graphs() -> Iterator[Callable[[], int]]:
    torch._dynamo.reset()
    counters.clear()
    yield lambda: counters["stats"]["unique_graphs"]
    torch._dynamo.reset()


def models(packing: str, num_layers: int = 2) -> list[Any]:
    """The same model twice."""
    made = []
    for _ in range(2):
        torch.manual_seed(0)
        shape = {"vocab_size": 64, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
        config = LlamaConfig(**shape, num_hidden_layers=num_layers, intermediate_size=48)
        config._attn_implementation = TREE if packing == "trees" else "sdpa"
        model = LlamaForCausalLM(config)
        if packing == "trees":
            TargetHead.install(model)
        made.append(model)
    return made


def micro_batch(packing: str, num_tokens: int) -> Any:
    """Two samples with a shared beginning, and a shorter one."""
    said = tuple((7 * index) % 64 for index in range(num_tokens))
    samples = [Sample(said[:-8], said[-8:]), Sample(said[:-8], said[:8]), Sample(said[1:9], said[-4:])]
    [batch] = (pack if packing == "trees" else pad)(samples, 4 * num_tokens)
    return batch


def learned(model: Any, batch: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """Log-probabilities and the gradient of their sum, then a pass without gradient, as a learner scores turns."""
    model.zero_grad()
    model.train()
    logprobs = token_logprobs(model, batch)
    logprobs.sum().backward()
    model.eval()
    with torch.no_grad():
        assert torch.allclose(token_logprobs(model, batch), logprobs, atol=1e-5)
    return logprobs.detach(), torch.cat([each.grad.flatten() for each in model.parameters()])


def compare(plain: Any, compiled: Any, batch: Any) -> None:
    for mine, theirs in zip(learned(compiled, batch), learned(plain, batch), strict=True):
        assert float((mine - theirs).norm() / theirs.norm()) <= 1e-5


@pytest.mark.timeout(600)
@pytest.mark.parametrize("packing", ["none", "trees"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_compiled_layers_give_the_same_numbers_and_no_length_compiles_again(
    packing: str, checkpointing: bool, graphs: Callable[[], int]
) -> None:
    plain, compiled = models(packing)
    if checkpointing:
        compiled.gradient_checkpointing_enable({"use_reentrant": False})
    compile_layers(compiled)
    assert list(compiled.state_dict()) == list(plain.state_dict())
    counted = []
    for num_tokens in LENGTHS:
        compare(plain, compiled, micro_batch(packing, num_tokens))
        counted.append(graphs())
    # Attention over trees cuts a layer into five pieces on a CPU. Each is compiled with and without gradient, and
    # with checkpointing two of them once more for a layer's input without one.
    assert 0 < counted[-1] <= {"none": 4, "trees": 12}[packing]
    assert counted[-1] == counted[1], "a second length is the last that is compiled"


def test_all_layers_share_one_compilation(graphs: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    counted = []
    for num_layers in (1, 12):
        torch._dynamo.reset()
        counters.clear()
        plain, compiled = models("none", num_layers)
        compile_layers(compiled)
        compare(plain, compiled, micro_batch("none", 40))
        counted.append(graphs())
    assert counted[0] == counted[1]


def test_tree_attention_is_compiled_with_its_layer(graphs: Callable[[], int], monkeypatch: pytest.MonkeyPatch) -> None:
    """FlexAttention, traced on a CPU: it is part of the layer's graph, and no length traces it again."""
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="aot_eager"))
    monkeypatch.setattr(flex_attention, "_validate_device", lambda *_: None)
    plain, compiled = models("trees")
    compile_layers(compiled)
    counted = []
    for num_tokens in LENGTHS:
        batch = micro_batch("trees", num_tokens)
        expected = learned(plain, batch)
        with monkeypatch.context() as patched:
            plan = TreeAttention(block_mask=flex_block_mask(batch.subtree_ends))
            patched.setattr(forward, "plan_attention", lambda *_, plan=plan: plan)
            found = learned(compiled, batch)
        for mine, theirs in zip(found, expected, strict=True):
            assert float((mine - theirs).norm() / theirs.norm()) <= 1e-5
        counted.append(graphs())
    assert counters["graph_break"] == {}
    assert counted[-1] <= 4, "one block or several, with and without gradient"
    assert attention._compiled_flex_attention.cache_info().currsize == 0, "it was compiled with the layer alone"


def test_where_layers_cannot_be_compiled_one_line_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = models("none")
    with pytest.raises(ConfigError, match=r"^learner\.compile: layers .*ZeRO-3.*; set learner\.compile: off, or"):
        deepspeed_config(LearnerConfig(compile="layers", zero_stage=3))
    with pytest.raises(LearnerError, match="no decoder layers"):
        compile_layers(torch.nn.Linear(2, 2))
    monkeypatch.setattr(engine.shutil, "which", lambda _: None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(LearnerError, match=r"no C\+\+ compiler"):
        compile_layers(model)

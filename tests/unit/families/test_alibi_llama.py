"""The Llama with ALiBi: its slopes, and that caches and padding change nothing. Its formula is in test_baichuan.py."""

import importlib
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from spag_ray.families.alibi_llama import AlibiLlamaConfig, AlibiLlamaForCausalLM, alibi_slopes
from spag_ray.families.auto import AutoConfig, AutoModelForCausalLM

ROOT = Path(__file__).resolve().parents[3]
TINY: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 6,
}  # fmt: skip


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    config = AlibiLlamaConfig(**TINY, initializer_range=0.3)
    return AutoModelForCausalLM.from_config(config, dtype=torch.float64).eval()


@pytest.fixture
def token_ids() -> torch.Tensor:
    return torch.randint(0, 61, (3, 40), generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("num_heads", [1, 6, 32, 40, 64])
def test_slopes_are_those_of_bloom(num_heads: int) -> None:
    at_one = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float64)[:, 0, 1]
    assert alibi_slopes(num_heads) == pytest.approx(at_one.tolist(), rel=1e-6)


def test_reading_in_two_parts_with_a_cache_gives_the_same(model: Any, token_ids: torch.Tensor) -> None:
    with torch.no_grad():
        whole = model(token_ids).logits
        first = model(token_ids[:, :25], use_cache=True)
        rest = model(token_ids[:, 25:], past_key_values=first.past_key_values, use_cache=True)
    torch.testing.assert_close(torch.cat([first.logits, rest.logits], dim=1), whole, rtol=0, atol=1e-6)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_padding_on_either_side_changes_nothing(model: Any, token_ids: torch.Tensor, attention: str) -> None:
    model.set_attn_implementation(attention)
    padding = torch.zeros(3, 5, dtype=torch.int64)
    rows = torch.tensor([[0], [5], [5]])
    left = torch.cat([padding, token_ids], dim=1)
    mask = (torch.arange(45) >= rows).long()  # the first row has no padding at all
    with torch.no_grad():
        whole = model(token_ids).logits
        padded_left = model(left, attention_mask=mask).logits
        padded_right = model(torch.cat([token_ids, padding], dim=1), attention_mask=mask.flip(1)).logits
    torch.testing.assert_close(padded_left[1:, 5:], whole[1:], rtol=0, atol=1e-6)
    torch.testing.assert_close(padded_right[:, :40], whole, rtol=0, atol=1e-6)


def test_a_saved_model_is_found_by_its_type(model: Any, token_ids: torch.Tensor, tmp_path: Path) -> None:
    model.save_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), AlibiLlamaConfig)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64)
    assert isinstance(again, AlibiLlamaForCausalLM)
    with torch.no_grad():
        assert torch.equal(again(token_ids).logits, model(token_ids).logits)


def test_vllm_is_told_of_the_family_by_the_entry_point_of_setup_py() -> None:
    from vllm import ModelRegistry

    setup = (ROOT / "setup.py").read_text(encoding="utf-8")
    entry = re.search(r'"vllm\.general_plugins": \["spag_ray = ([\w.]+):(\w+)"\]', setup)
    assert entry is not None
    for _ in range(2):  # vLLM may call it again
        getattr(importlib.import_module(entry[1]), entry[2])()
    assert AlibiLlamaForCausalLM.__name__ in ModelRegistry.get_supported_archs()

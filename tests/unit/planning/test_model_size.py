"""How large a model is, told without loading it: by its shape, and by the headers of its weights."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest

from cluster.planning.model_size import count_parameters, model_size, stored_parameters
from spag_ray.config.parts import ModelShape
from spag_ray.errors import ModelError
from tests.support.shapes import LLAMA_2_7B
from tests.support.tiny_model import make_tiny_model

TINY: dict[str, Any] = {
    "vocab_size": 61, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
}  # fmt: skip


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize(
    ("family", "more"),
    [
        ("llama", {"num_key_value_heads": 2}),
        ("alibi_llama", {}),
        ("mistral", {"num_key_value_heads": 2, "head_dim": 16}),
        ("qwen2", {"num_key_value_heads": 2}),
        ("qwen3", {"num_key_value_heads": 2, "head_dim": 16}),
        ("gpt_neox", {}),
    ],
)
def test_parameters_are_those_of_transformers(family: str, more: dict[str, Any], tied: bool, tmp_path: Path) -> None:
    from spag_ray.families.auto import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(family, **TINY, **more, tie_word_embeddings=tied)
    made = AutoModelForCausalLM.from_config(config)
    measured = sum(parameter.numel() for parameter in made.parameters())
    made.save_pretrained(tmp_path)
    size = model_size(str(tmp_path), None)
    assert size is not None
    shape = size.shape
    assert shape is not None
    assert shape.model_type == family
    assert count_parameters(shape) == measured
    assert stored_parameters(tmp_path) == measured


def test_known_models_have_their_known_size() -> None:
    assert count_parameters(LLAMA_2_7B) == 6_738_415_616
    qwen3_4b = ModelShape(
        model_type="qwen3",
        vocab_size=151936,
        hidden_size=2560,
        intermediate_size=9728,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
    )
    assert count_parameters(qwen3_4b) == 4_022_468_096


def test_a_model_that_is_not_here_is_as_large_as_the_configuration_says(tmp_path: Path) -> None:
    assert model_size(str(tmp_path / "absent"), None) is None
    size = model_size(str(tmp_path / "absent"), LLAMA_2_7B)
    assert size is not None
    assert "model_shape" in size.source
    assert size.kv_bytes_per_token(2) == 2 * 32 * 4096 * 2


@pytest.mark.parametrize(
    ("given", "longest"),
    [
        ({}, None),
        ({"sliding_window": 4096}, 4096),
        ({"sliding_window": 4096, "use_sliding_window": False}, None),  # Qwen2
        ({"rope_scaling": {"type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),  # Phi-3
        ({"rope_parameters": {"rope_type": "dynamic"}, "max_position_embeddings": 2048, "sliding_window": 4096}, 2048),
        ({"rope_scaling": {"rope_type": "llama3"}, "max_position_embeddings": 8192}, None),
    ],
)
def test_longest_tree_is_window_or_trained_length(given: dict[str, Any], longest: int | None, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **TINY, **given}))
    found = model_size(str(tmp_path), None)
    assert found is not None
    assert found.longest_tree == longest


def test_adapters_are_counted_as_peft_makes_them(tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    from learners.lora import with_adapters
    from spag_ray.config.parts import LoraConfig

    folder = make_tiny_model(tmp_path)
    for targets in ((), ("q_proj", "v_proj")):
        module = with_adapters(AutoModelForCausalLM.from_pretrained(folder), LoraConfig(rank=4, targets=targets))
        measured = sum(parameter.numel() for parameter in module.parameters() if parameter.requires_grad)
        size = model_size(str(folder), None)
        assert size is not None
        assert size.num_adapter_parameters(4, targets) == measured


@pytest.mark.parametrize("header", [None, b"[1]", b'{"a": {"dtype": "F32"}}', b'{"a": 1}', b'{"a": "\xff"}'])
def test_a_damaged_header_is_named(header: bytes | None, tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    damaged = b"\xff" * 64 if header is None else struct.pack("<Q", len(header)) + header
    (folder / "model.safetensors").write_bytes(damaged)
    with pytest.raises(ModelError, match=r"model\.safetensors.*copy the model again"):
        model_size(str(folder), None)


@pytest.mark.parametrize("text", [b"{", b"\xff\xfe{}", b"[" * 100_000])
def test_a_config_that_is_no_json_is_named(text: bytes, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(text)
    with pytest.raises(ModelError, match=r"config\.json is not valid JSON"):
        model_size(str(tmp_path), None)


def test_a_family_that_is_not_known_is_counted_by_its_weights(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path)
    (folder / "config.json").write_text('{"model_type": "another"}')
    size = model_size(str(folder), None)
    assert size is not None
    assert size.shape is None
    assert size.kv_bytes_per_token(2) is None
    assert size.num_parameters == stored_parameters(folder)

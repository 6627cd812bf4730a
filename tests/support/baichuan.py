"""Tiny folders as Baichuan 2 is published: random weights, a SentencePiece model trained on the spot."""

import io
import json
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.tiny_model import TARGETS

SPACES = ["▁▁", "▁▁▁▁", "▁▁▁▁▁▁▁▁", "   "]  # the last one, as written, is never found
RESERVED = [f"<reserved_{number}>" for number in range(4)]
SENTENCES = [
    "You are the attacker. The target word is river.",
    "It flows past the old town, and you can swim in it.",
    "I know the word! It is `piano`!",
    "What do you like to do on a long day, 2024 or 1999?",
    "我知道这个词了！它是河流。",
    *TARGETS,
]


def make_baichuan(
    folder: Path,
    alibi: bool,
    dtype: torch.dtype = torch.float32,
    as_bin: bool = True,
    seed: int = 0,
    add_dummy_prefix: bool = False,
) -> dict[str, Tensor]:
    """A folder as the 13B's (`alibi`) or the 7B's: two files of weights. Returns the weights."""
    import sentencepiece

    folder.mkdir(parents=True, exist_ok=True)
    written = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES * 20),
        model_writer=written,
        model_type="bpe",
        vocab_size=480,
        hard_vocab_limit=False,
        byte_fallback=True,
        split_digits=True,
        add_dummy_prefix=add_dummy_prefix,
        remove_extra_whitespaces=False,
        normalization_rule_name="identity",
        user_defined_symbols=SPACES + RESERVED,
        minloglevel=2,
    )
    (folder / "tokenizer.model").write_bytes(written.getvalue())
    vocab_size = sentencepiece.SentencePieceProcessor(model_proto=written.getvalue()).vocab_size()
    config: dict[str, Any] = {
        "architectures": ["BaichuanForCausalLM"],
        "auto_map": {"AutoModelForCausalLM": "modeling_baichuan.BaichuanForCausalLM"},
        "model_type": "baichuan",
        "vocab_size": vocab_size,
        "hidden_size": 192,  # heads of 32: vLLM has no smaller ones on a CPU
        "intermediate_size": 64,
        "num_hidden_layers": 2,
        "num_attention_heads": 6,  # no power of two, as the 13B's 40
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rms_norm_eps": 1e-6,
        "model_max_length": 1024,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "pad_token_id": 0,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }
    if not alibi:
        config["max_position_embeddings"] = 1024
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    weights = _random_weights(config, dtype, seed)
    names = list(weights)
    for number, part in enumerate((names[:9], names[9:]), 1):
        tensors = {name: weights[name] for name in part}
        if as_bin:
            torch.save(tensors, folder / f"pytorch_model-{number:05}-of-00002.bin")
        else:
            from safetensors.torch import save_file

            save_file(tensors, folder / f"model-{number:05}-of-00002.safetensors", metadata={"format": "pt"})
    return weights


def _random_weights(config: dict[str, Any], dtype: torch.dtype, seed: int) -> dict[str, Tensor]:
    width, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    shapes: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (vocabulary, width)}
    for layer in range(config["num_hidden_layers"]):
        shapes |= {
            f"model.layers.{layer}.{name}.weight": shape
            for name, shape in {
                "self_attn.W_pack": (3 * width, width),
                "self_attn.o_proj": (width, width),
                "mlp.gate_proj": (inner, width),
                "mlp.up_proj": (inner, width),
                "mlp.down_proj": (width, inner),
                "input_layernorm": (width,),
                "post_attention_layernorm": (width,),
            }.items()
        }
    shapes |= {"model.norm.weight": (width,), "lm_head.weight": (vocabulary, width)}
    generator = torch.Generator().manual_seed(seed)
    return {
        name: (1.0 + 0.2 * drawn if len(shape) == 1 else 0.15 * drawn).to(dtype)
        for name, shape in shapes.items()
        for drawn in [torch.randn(shape, generator=generator, dtype=torch.float64)]
    }

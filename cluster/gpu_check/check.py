"""A check: what it needs, what it is told, what it finds."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

# As in these models' config.json. The weights are random: only shapes matter to memory and speed.
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "model_type": "qwen2",
        "vocab_size": 512,
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen2.5-0.5b": {
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 896,
        "intermediate_size": 4864,
        "num_hidden_layers": 24,
        "num_attention_heads": 14,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen2.5-1.5b": {
        "model_type": "qwen2",
        "vocab_size": 151936,
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "tie_word_embeddings": True,
    },
    "qwen2.5-7b": {
        "model_type": "qwen2",
        "vocab_size": 152064,
        "hidden_size": 3584,
        "intermediate_size": 18944,
        "num_hidden_layers": 28,
        "num_attention_heads": 28,
        "num_key_value_heads": 4,
        "tie_word_embeddings": False,
    },
}
GIB = 2**30


@dataclass(frozen=True)
class Told:
    """`folder`: where a model of `shape` with random weights lies, and room to write. `device`: "cuda", or "cpu", where
    the checks' own code can be tried with a tiny model and shows nothing of a GPU."""

    shape: str
    folder: Path
    device: str = "cuda"

    @property
    def model(self) -> Path:
        return self.folder / "model"

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


@dataclass(frozen=True)
class Finding:
    """Whether it is as it should be, a line about it, and its figures by name, each with its unit in the name."""

    passed: bool
    text: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """`needs`: Python packages, and `num_gpus` GPUs."""

    name: str
    run: Callable[[Told], Finding]
    needs: tuple[str, ...]
    num_gpus: int = 1


def write_random_model(told: Told) -> None:
    """In bfloat16, as small numbers as a fresh model has."""
    from transformers import AutoConfig, AutoModelForCausalLM

    shape = dict(SHAPES[told.shape])
    config = AutoConfig.for_model(shape.pop("model_type"), **shape, dtype="bfloat16")
    torch.manual_seed(0)
    with torch.device(told.device):
        model = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    model.to("cpu").save_pretrained(told.model)


def seconds(work: Callable[[], object], device: str, times: int = 3) -> float:
    """Of one call, the shortest of several after one that warms up."""
    found = []
    for _ in range(times + 1):
        synchronize(device)
        began = time.perf_counter()
        work()
        synchronize(device)
        found.append(time.perf_counter() - began)
    return min(found[1:])


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()

"""A check: its requirements, its inputs, its findings."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

# From these models' config.json. The weights are random: memory and speed depend only on the shapes.
_KEYS = "model_type vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads"
SHAPES: dict[str, dict[str, Any]] = {
    name: dict(zip((*_KEYS.split(), "tie_word_embeddings"), values, strict=True))
    for name, values in {
        "tiny": ("qwen2", 512, 128, 256, 2, 4, 2, True),
        "smollm2-135m": ("llama", 49152, 576, 1536, 30, 9, 3, True),
        "qwen2.5-0.5b": ("qwen2", 151936, 896, 4864, 24, 14, 2, True),
        "qwen2.5-1.5b": ("qwen2", 151936, 1536, 8960, 28, 12, 2, True),
        "qwen2.5-7b": ("qwen2", 152064, 3584, 18944, 28, 28, 4, False),
    }.items()
}
GIB = 2**30
RANDOM_MODEL = "random-model"


@dataclass(frozen=True)
class Told:
    """The inputs of a check. `shape`: of the random model, which all checks share. `folder`: for the check's own files.
    `device`: "cuda"; or "cpu", which only tries the code of the checks, and shows nothing about a GPU."""

    shape: str
    folder: Path
    device: str = "cuda"

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"


@dataclass(frozen=True)
class Finding:
    """The result of a check: whether it passed, a line about it, and its figures by name, with units in the names."""

    passed: bool
    text: str
    figures: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Check:
    """`takes_s`: estimated seconds on one GPU. `needs`: Python packages, `num_gpus` GPUs, and on a GPU machine
    `programs`. `gpu_only`: why a machine without a GPU skips it; "" if it does not."""

    name: str
    run: Callable[[Told], Finding]
    takes_s: float
    needs: tuple[str, ...]
    num_gpus: int = 1
    programs: tuple[str, ...] = ()
    gpu_only: str = ""


def model(told: Told) -> Finding:
    """Writes the random model that the other checks load: the first use of the GPU."""
    num_weights = write_random_model(Path(model_folder(told)), SHAPES[told.shape], torch.bfloat16, told.device)
    return Finding(True, f"{num_weights:,} random weights", {"num_weights": float(num_weights)})


def model_folder(told: Told) -> str:
    """Beside the folders of all checks."""
    return str(told.folder.parent / RANDOM_MODEL)


def write_random_model(folder: Path, shape: Mapping[str, Any], stored: torch.dtype, device: str = "cpu") -> int:
    """Fills the weights with numbers as small as in a new model; returns how many there are."""
    from transformers import AutoConfig, AutoModelForCausalLM

    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(AutoConfig.for_model(**shape, dtype=stored), dtype=stored)
    model.to("cpu").save_pretrained(folder)
    return sum(parameter.numel() for parameter in model.parameters())


def tokenizer_of_bytes(texts: Iterable[str], vocabulary_size: int, end: str, **special: str) -> Any:
    """A BPE of the bytes of these texts, without a chat template. `special`: further tokens by transformers' names."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    given: dict[str, Any] = {"special_tokens": [end], "initial_alphabet": alphabet, "show_progress": False}
    raw.train_from_iterator(texts, trainers.BpeTrainer(vocab_size=vocabulary_size, **given))
    return PreTrainedTokenizerFast(tokenizer_object=raw, eos_token=end, **special)


def seconds(work: Callable[[], object], device: str, times: int = 3) -> float:
    """The time of one call: the shortest of several, after a warm-up call."""
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

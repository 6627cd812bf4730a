"""A model folder as a version of the weights that an engine loads."""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file

from spag_ray.errors import ModelError
from spag_ray.weights.snapshot import Snapshot, make_bucket, plan_buckets
from spag_ray.weights.weight_files import weight_files


def saved_snapshot(folder: str | Path, version: int, max_bytes: int = 64 * 2**20) -> Snapshot:
    """The weights of a model folder (safetensors) as a version to load. Raises ModelError when there are none."""
    tensors: dict[str, torch.Tensor] = {}
    for path in weight_files(Path(folder)):
        if path.suffix == ".safetensors":
            tensors |= load_file(path)
    if not tensors:
        raise ModelError(f"{folder}: no *.safetensors in it, so there is no model to load")
    buckets = []
    for index, names in enumerate(plan_buckets([(name, t.nbytes) for name, t in tensors.items()], max_bytes)):
        parts = (
            (
                name,
                str(tensors[name].dtype).removeprefix("torch."),
                tuple(tensors[name].shape),
                tensors[name].contiguous().view(-1).view(torch.uint8).numpy(),
            )
            for name in names
        )
        buckets.append(make_bucket(index, parts))
    return Snapshot.of(version, tuple(buckets))

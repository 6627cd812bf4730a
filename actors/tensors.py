"""A bucket's bytes -> torch tensors, on the side that receives weights."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from spag_ray.snapshot import TensorSpec


def tensors_of(payload: torch.Tensor, specs: tuple[TensorSpec, ...]) -> Iterator[tuple[str, torch.Tensor]]:
    """`payload` [bytes] uint8 -> (name, view of it with the spec's dtype and shape); nothing is copied."""
    for spec in specs:
        part = payload[spec.offset : spec.offset + spec.num_bytes]
        yield spec.name, part.view(getattr(torch, spec.dtype)).view(spec.shape)

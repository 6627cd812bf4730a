"""Buckets of weights and torch tensors: filled on the side of the learner, read on the side of the engine.

A bucket crosses to a process on the same machine in a file of shared memory that has no name, so that nothing is left
of it when its writer is killed; the reader opens it through /proc.
"""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import astuple
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from spag_ray.errors import WeightSyncError
from spag_ray.host.shared_memory import shared_memory
from spag_ray.weights.snapshot import Bucket, TensorSpec, checksum


def tensors_of(payload: Tensor, specs: tuple[TensorSpec, ...]) -> Iterator[tuple[str, Tensor]]:
    """`payload` [bytes] uint8 -> (name, view of it with the spec's dtype and shape); nothing is copied."""
    for spec in specs:
        part = payload[spec.offset : spec.offset + spec.num_bytes]
        yield spec.name, part.view(getattr(torch, spec.dtype)).view(spec.shape)


def bucket_of(index: int, tensors: Mapping[str, Tensor]) -> Bucket:
    """A bucket of copies of these tensors of the host, each in its own dtype."""
    specs, pieces, offset = [], [], 0
    for name, tensor in tensors.items():
        piece = tensor.contiguous().view(-1).view(torch.uint8).numpy()
        dtype = str(tensor.dtype).removeprefix("torch.")
        specs.append(TensorSpec(name, dtype, tuple(tensor.shape), offset, piece.nbytes))
        pieces.append(piece)
        offset += piece.nbytes
    payload = np.concatenate(pieces)
    return Bucket(index, tuple(specs), payload, checksum(payload))


@contextlib.contextmanager
def in_shared_memory(bucket: Bucket) -> Iterator[dict[str, Any]]:
    """In this block a file has the bucket's bytes; yields the update with which a worker's EngineSide reads it. Raises
    WeightSyncError without room for it."""
    with tempfile.TemporaryFile(dir=shared_memory(), buffering=0) as file:
        left = bucket.payload.data
        try:
            while left:  # one call writes at most 2 GiB
                left = left[file.write(left) :]
        except OSError as error:
            raise WeightSyncError(
                f"{shared_memory()} has no room for {len(bucket.payload):,} bytes of weights ({error.strerror}); make "
                "it larger (docker run --shm-size), or lower learner.bucket_bytes"
            ) from error
        yield {
            "bucket": {
                "path": f"/proc/{os.getpid()}/fd/{file.fileno()}",
                "index": bucket.index,
                "checksum": bucket.checksum,
                "tensors": [astuple(spec) for spec in bucket.tensors],
            }
        }


def tensors_in(update: Mapping[str, Any]) -> Iterator[tuple[str, Tensor]]:
    """The tensors of an update of `in_shared_memory`. Raises WeightSyncError if their bytes are not those that were
    sent."""
    told = update["bucket"]
    specs = tuple(TensorSpec(name, dtype, tuple(shape), *place) for name, dtype, shape, *place in told["tensors"])
    num_bytes = max(spec.offset + spec.num_bytes for spec in specs)
    # Mapped, not copied: layer-wise loading keeps tensors until their layer is complete, and a closed file stays in
    # memory while it is mapped.
    payload = torch.from_file(told["path"], shared=False, size=num_bytes, dtype=torch.uint8)
    Bucket(told["index"], specs, payload.numpy(), told["checksum"]).verify()
    yield from tensors_of(payload, specs)


class StagingBuffer:
    """Host memory for outgoing weights: as large as the largest bucket so far, and reused for each.

    On a machine with a GPU it is page-locked, so that the GPU writes it at the speed of its bus.
    """

    def __init__(self) -> None:
        self._memory = torch.empty(0, dtype=torch.uint8)

    def fill(
        self, dtype: torch.dtype, tensors: Iterable[tuple[str, Tensor]], num_bytes: int
    ) -> tuple[tuple[TensorSpec, ...], NDArray[np.uint8]]:
        """Copy the tensors, from any device, as `dtype`; `num_bytes` in all. Returns where each lies and the bytes,
        which are this buffer's own and valid until the next call."""
        if len(self._memory) < num_bytes:
            self._memory = torch.empty(num_bytes, dtype=torch.uint8, pin_memory=torch.cuda.is_available())
        specs, offset = [], 0
        for name, tensor in tensors:
            end = offset + tensor.numel() * dtype.itemsize
            self._memory[offset:end].view(dtype).view(tensor.shape).copy_(tensor, non_blocking=True)
            named = str(dtype).removeprefix("torch.")
            specs.append(TensorSpec(name, named, tuple(tensor.shape), offset, end - offset))
            offset = end
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        return tuple(specs), self._memory[:offset].numpy()

    def bucket(self, index: int, dtype: torch.dtype, tensors: Iterable[tuple[str, Tensor]], num_bytes: int) -> Bucket:
        """`fill` as a bucket."""
        specs, payload = self.fill(dtype, tensors, num_bytes)
        return Bucket(index, specs, payload, checksum(payload))

"""A bucket of weights in a file of shared memory, read by a process on the same machine without a copy."""

from __future__ import annotations

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from spag_ray.weights.snapshot import Bucket


def shared_memory() -> Path:
    """A folder in memory, or the one for temporary files if there is none."""
    return Path("/dev/shm") if os.access("/dev/shm", os.W_OK) else Path(tempfile.gettempdir())


@contextlib.contextmanager
def in_shared_memory(bucket: Bucket) -> Iterator[dict[str, Any]]:
    """In this block a file has the bucket's bytes; yields what a worker needs to read it (actors/vllm_weights.py)."""
    with tempfile.NamedTemporaryFile(dir=shared_memory(), prefix="spag_ray-bucket-") as file:
        file.write(bucket.payload.data)
        file.flush()
        yield {
            "path": file.name,
            "index": bucket.index,
            "checksum": bucket.checksum,
            "tensors": [(spec.name, spec.dtype, spec.shape, spec.offset, spec.num_bytes) for spec in bucket.tensors],
        }

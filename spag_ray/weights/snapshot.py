"""A published version of the weights as size-capped buckets of bytes: made by a learner, read by policies.

>>> plan = plan_buckets([("w", 8), ("b", 4), ("v", 8)], max_bytes=12)
>>> plan
[['w', 'b'], ['v']]
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spag_ray.errors import WeightSyncError


@dataclass(frozen=True)
class TensorSpec:
    """Where one tensor lies in a bucket: bytes [offset, offset + num_bytes). `dtype` is torch's name for it."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class Bucket:
    """Some tensors of a snapshot: `payload` [bytes] uint8 and the xxh3-64 of it."""

    index: int
    tensors: tuple[TensorSpec, ...]
    payload: NDArray[np.uint8]
    checksum: str

    def verify(self) -> None:
        """Raises WeightSyncError if the bytes differ from those that were sent."""
        found = checksum(self.payload)
        if found != self.checksum:
            raise WeightSyncError(
                f"bucket {self.index} of a weight snapshot arrived damaged: checksum {found}, sent {self.checksum}"
            )


@dataclass
class Snapshot:
    """A version of the weights, delivered bucket by bucket: `parts` are in this process, made by a call, or awaited.
    With `adapter` (peft's adapter_config.json) it has the weights of a low-rank adapter for the model that the policy
    was started with. `num_bytes`: of the buckets that have come."""

    version: int
    num_tensors: int
    parts: Sequence[Bucket | Callable[[], Bucket] | Awaitable[Bucket]]
    adapter: Mapping[str, Any] | None = None
    num_bytes: int = 0

    @classmethod
    def of(cls, version: int, parts: Sequence[Bucket], adapter: Mapping[str, Any] | None = None) -> Snapshot:
        """Of buckets that are all in this process."""
        return cls(version, sum(len(bucket.tensors) for bucket in parts), parts, adapter)

    async def buckets(self) -> AsyncIterator[Bucket]:
        for part in self.parts:
            if isinstance(part, Bucket):
                bucket = part
            else:
                bucket = await (asyncio.to_thread(part) if callable(part) else part)  # a call reads from a disk
            self.num_bytes += bucket.payload.nbytes
            yield bucket


def checksum(payload: NDArray[np.uint8]) -> str:
    import xxhash  # not needed where nothing is sent

    return xxhash.xxh3_64_hexdigest(payload.data)


def plan_buckets(sizes: Iterable[tuple[str, int]], max_bytes: int) -> list[list[str]]:
    """Tensor names in order, cut into runs of at most `max_bytes`; a larger tensor gets a bucket of its own.

    A pure function of names and sizes, so every learner rank walks the same plan.
    """
    plan: list[list[str]] = []
    filled = 0
    for name, num_bytes in sizes:
        if not plan or filled + num_bytes > max_bytes:
            plan.append([])
            filled = 0
        plan[-1].append(name)
        filled += num_bytes
    return plan

"""The channel `object_store`: Ray keeps the buckets of a version, and engines fetch them, on any machines.

The learner goes on while engines load, and an engine that starts later loads the same buckets. This channel also
carries adapters. Rank 0 makes the buckets (Exporter.bucket); Ray's part is in cluster/learning/weight_sync.py.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spag_ray.weights.snapshot import Bucket


@dataclass
class FetchedSnapshot:
    """A Snapshot whose buckets an engine awaits one at a time. `num_bytes`: of those that have come."""

    version: int
    num_tensors: int
    parts: Sequence[Awaitable[Bucket]]
    adapter: Mapping[str, Any] | None = None
    num_bytes: int = 0

    async def buckets(self) -> AsyncIterator[Bucket]:
        for awaited in self.parts:
            bucket = await awaited
            self.num_bytes += bucket.payload.nbytes
            yield bucket

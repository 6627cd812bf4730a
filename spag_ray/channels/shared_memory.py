"""The channel `shared_memory`: rank 0 writes bucket after bucket to shared memory, and each engine on the same machine
reads it, checks it and loads it, before the next is written. The engine's half is what every engine has."""

from __future__ import annotations

import itertools
from typing import Any

from spag_ray.channels.base import Link, Sender, Weights
from spag_ray.channels.buckets import StagingBuffer, in_shared_memory
from spag_ray.weights.snapshot import plan_buckets


def sender(weights: Weights, client: Any, link: Link) -> Sender:
    return _Sender(weights, client, link)


class _Sender(Sender):
    def __init__(self, weights: Weights, client: Any, link: Link) -> None:
        super().__init__(weights)
        self._client = client
        self._is_first_rank = link.rank == 0
        self._dtype = weights.dtype
        self._sizes = self._weights.sizes
        self._plan = plan_buckets(self._sizes.items(), link.bucket_bytes)
        self._staging = StagingBuffer()

    def open(self) -> None:
        if self._is_first_rank:
            self._client.init_weight_transfer_engine({})

    def _send(self) -> None:
        if not self._is_first_rank:
            return  # its weights are walked through afterwards, with the gathers of rank 0
        tensors = iter(self._weights)
        self._client.start_weight_update()
        for index, names in enumerate(self._plan):
            num_bytes = sum(self._sizes[name] for name in names)
            bucket = self._staging.bucket(index, self._dtype, itertools.islice(tensors, len(names)), num_bytes)
            with in_shared_memory(bucket) as update:
                self._client.update_weights(update)
        self._client.finish_weight_update()

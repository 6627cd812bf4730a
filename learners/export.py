"""A learner's weights as buckets of bytes; every rank follows the same plan (ZeRO-3 gathers are collective)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learners.engine import TrainingEngine
from learners.lora import Weights, merged_weights
from spag_ray.channels.buckets import StagingBuffer
from spag_ray.config.parts import LoraConfig
from spag_ray.families.auto import file_name
from spag_ray.weights.snapshot import Bucket, TensorSpec, checksum, plan_buckets


class Exporter:
    """Cuts weights into buckets of at most `max_bytes` of `dtype`, once, by name and size."""

    def __init__(self, engine: TrainingEngine, weights: Weights, dtype: torch.dtype, max_bytes: int) -> None:
        self._engine = engine
        self.dtype = dtype
        self._weights = weights
        self._sizes = {name: math.prod(shape) * dtype.itemsize for name, shape in self.shapes().items()}
        self._staging = StagingBuffer()
        self.num_tensors, self.num_bytes = len(weights), sum(self._sizes.values())
        self.plan = plan_buckets(self._sizes.items(), max_bytes)
        self.num_buckets = len(self.plan)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every weight by name, in the order of `each`; nothing is gathered."""
        # ZeRO-3 leaves an empty tensor behind and keeps the whole shape beside it.
        return {
            name: tuple(getattr(parts[0], "ds_shape", parts[0].shape)) for name, (parts, _) in self._weights.items()
        }

    @torch.no_grad()
    def each(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name, whole on every rank and on the model's device; every rank has to iterate to the end.
        They may be the learner's own memory: valid until its next step."""
        copy = self._engine.is_partitioned  # a gathered weight is freed when the gathering ends
        for names in self.plan:
            with self._gathered(names):
                for name in names:
                    yield name, self._weights[name][1]().detach().to(self.dtype, copy=copy)

    def bucket(self, index: int) -> Bucket | None:
        """Bucket `index` on rank 0, None elsewhere; every rank has to call it. Its payload is valid until the next
        call."""
        copied = self.copied(index)
        if copied is None:
            return None
        specs, payload = copied
        return Bucket(index, specs, payload, checksum(payload))

    @torch.no_grad()
    def copied(self, index: int) -> tuple[tuple[TensorSpec, ...], NDArray[np.uint8]] | None:
        """`bucket` before its checksum is computed: (where each tensor lies, the bytes)."""
        names = self.plan[index]
        with self._gathered(names):
            if self._engine.world.rank != 0:
                return None
            tensors = ((name, self._weights[name][1]().detach()) for name in names)
            return self._staging.fill(self.dtype, tensors, sum(self._sizes[name] for name in names))

    def _gathered(self, names: Sequence[str]) -> AbstractContextManager[None]:
        return self._engine.gathered([parameter for name in names for parameter in self._weights[name][0]])


def whole_weights(model: Any, lora: LoraConfig | None) -> Weights:
    """All weights of a model by their names in memory, with which it is saved; adapters merged into them."""
    if lora is not None:
        return merged_weights(model)
    return {name: ([parameter], parameter.detach) for name, parameter in model.named_parameters()}


def for_engines(model: Any, weights: Weights) -> Weights:
    """The same by the names that engines know. `model`: without adapters."""
    named = file_name(model)
    return {named(name): weight for name, weight in weights.items()}

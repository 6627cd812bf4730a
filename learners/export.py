"""A learner's weights as buckets of bytes; every rank walks the same plan (ZeRO-3 gathers are collective)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from learners.engine import TrainingEngine
from spag_ray.config.parts import LoraConfig
from spag_ray.weights.snapshot import Bucket, make_bucket, plan_buckets

# Name of a weight -> the parameters it is made of, and what computes it while they are gathered.
Weights = Mapping[str, tuple[list[nn.Parameter], Callable[[], Tensor]]]


class Exporter:
    """Cuts weights into buckets of at most `max_bytes` of `dtype`, once, by name and size."""

    def __init__(self, engine: TrainingEngine, weights: Weights, dtype: torch.dtype, max_bytes: int) -> None:
        self._engine = engine
        self._dtype = dtype
        self._weights = weights
        sizes = [(name, _num_elements(parts[0]) * dtype.itemsize) for name, (parts, _) in weights.items()]
        self.num_bytes = sum(size for _, size in sizes)
        self.plan = plan_buckets(sizes, max_bytes)

    @property
    def num_buckets(self) -> int:
        return len(self.plan)

    @property
    def dtype(self) -> torch.dtype:
        return self._dtype

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of every weight, by name, in the order of `each`; nothing is gathered."""
        return {name: _shape(parts[0]) for name, (parts, _) in self._weights.items()}

    @torch.no_grad()
    def each(self) -> Iterator[tuple[str, Tensor]]:
        """Every weight by name, whole on every rank and where the model is; every rank has to walk through it."""
        copy = self._engine.is_partitioned
        for names in self.plan:
            with self._engine.gathered([parameter for name in names for parameter in self._weights[name][0]]):
                for name in names:
                    yield name, self._weights[name][1]().detach().to(self._dtype, copy=copy)

    @property
    def num_tensors(self) -> int:
        return len(self._weights)

    def bucket(self, index: int) -> Bucket | None:
        """Bucket `index` on rank 0, None elsewhere; every rank has to call it."""
        tensors = self.tensors(index)
        if tensors is None:
            return None
        dtype = str(self._dtype).removeprefix("torch.")
        return make_bucket(
            index,
            (
                (name, dtype, tuple(tensor.shape), tensor.contiguous().view(-1).view(torch.uint8).numpy())
                for name, tensor in tensors.items()
            ),
        )

    @torch.no_grad()
    def tensors(self, index: int) -> dict[str, Tensor] | None:
        """The weights of bucket `index` by name, on the CPU, on rank 0; None elsewhere; every rank has to call it. They
        may be the learner's own memory: valid until its next step."""
        names = self.plan[index]
        # A gathered weight is gone when the gathering ends.
        copy = self._engine.is_partitioned
        with self._engine.gathered([parameter for name in names for parameter in self._weights[name][0]]):
            if self._engine.world.rank != 0:
                return None
            return {name: self._weights[name][1]().detach().to("cpu", self._dtype, copy=copy) for name in names}


def whole_weights(model: Any, lora: LoraConfig | None) -> Weights:
    """All weights of a model; adapters merged into them."""
    if lora is not None:
        from learners.lora import merged_weights

        return merged_weights(model)
    return {name: ([parameter], partial(_itself, parameter)) for name, parameter in model.named_parameters()}


def _num_elements(parameter: nn.Parameter) -> int:
    # ZeRO-3 leaves an empty tensor behind and keeps the whole size beside it.
    return int(getattr(parameter, "ds_numel", parameter.numel()))


def _shape(parameter: nn.Parameter) -> tuple[int, ...]:
    return tuple(getattr(parameter, "ds_shape", parameter.shape))


def _itself(parameter: nn.Parameter) -> Tensor:
    return parameter

"""A learner's weights as buckets of bytes; every rank walks the same plan (ZeRO-3 gathers are collective)."""

from __future__ import annotations

import torch

from learners.engine import TrainingEngine
from spag_ray.snapshot import Bucket, TensorSpec, checksum, plan_buckets


class Exporter:
    """Cuts an engine's parameters into buckets of at most `max_bytes` of `dtype`, once, by name and size."""

    def __init__(self, engine: TrainingEngine, dtype: torch.dtype, max_bytes: int) -> None:
        self._engine = engine
        self._dtype = dtype
        self._parameters = dict(engine.named_parameters())
        sizes = [(name, _num_elements(parameter) * dtype.itemsize) for name, parameter in self._parameters.items()]
        self.plan = plan_buckets(sizes, max_bytes)

    @property
    def num_buckets(self) -> int:
        return len(self.plan)

    @property
    def num_tensors(self) -> int:
        return len(self._parameters)

    def bucket(self, index: int) -> Bucket | None:
        """Bucket `index` on rank 0, None elsewhere; every rank has to call it."""
        names = self.plan[index]
        parameters = [self._parameters[name] for name in names]
        specs: list[TensorSpec] = []
        parts: list[torch.Tensor] = []
        offset = 0
        with self._engine.gathered(parameters):
            if self._engine.world.rank != 0:
                return None
            for name, parameter in zip(names, parameters, strict=True):
                part = parameter.detach().to("cpu", self._dtype).contiguous().view(-1).view(torch.uint8)
                dtype = str(self._dtype).removeprefix("torch.")
                specs.append(TensorSpec(name, dtype, tuple(parameter.shape), offset, part.numel()))
                parts.append(part)
                offset += part.numel()
            payload = torch.cat(parts).numpy()
        return Bucket(index, tuple(specs), payload, checksum(payload))


def _num_elements(parameter: torch.nn.Parameter) -> int:
    # ZeRO-3 leaves an empty tensor behind and keeps the whole size beside it.
    return int(getattr(parameter, "ds_numel", parameter.numel()))

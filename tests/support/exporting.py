"""The weights of a model folder as a learner of one rank exports them."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from learners.export import Exporter, for_engines, whole_weights
from learners.model_folder import load_model

ALONE: Any = SimpleNamespace(is_partitioned=False, world=SimpleNamespace(rank=0), gathered=lambda _: nullcontext())


def exporter_of(folder: Path, max_bytes: int, dtype: torch.dtype = torch.float32) -> Exporter:
    model = load_model(str(folder), torch.float32, "sdpa")
    return Exporter(ALONE, for_engines(model, whole_weights(model, None)), dtype, max_bytes)

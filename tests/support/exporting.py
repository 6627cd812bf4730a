"""The weights of a model folder as a learner of one rank exports them."""

from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from learners.export import Exporter, whole_weights
from learners.model_folder import load_model

ALONE: Any = SimpleNamespace(is_partitioned=False, world=SimpleNamespace(rank=0), gathered=lambda _: nullcontext())


def exporter_of(folder: Path, max_bytes: int, dtype: torch.dtype = torch.float32) -> Exporter:
    return Exporter(ALONE, whole_weights(load_model(str(folder), torch.float32, "sdpa"), None), dtype, max_bytes)

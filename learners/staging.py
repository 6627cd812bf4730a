"""Host tensors -> a device, in one copy for each dtype, so that a GPU gets few large copies and waits for none; and
the time that a device takes, measured without waiting for it."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def to_device(tensors: Mapping[str, Tensor], device: torch.device) -> dict[str, Tensor]:
    """The same tensors on `device`; on a CPU the very same. The copies run beside the host's work: their source is
    page-locked, and the allocator keeps it until they are done."""
    if device.type == "cpu":
        return dict(tensors)
    by_dtype: defaultdict[torch.dtype, list[str]] = defaultdict(list)
    for name, tensor in tensors.items():
        by_dtype[tensor.dtype].append(name)
    found: dict[str, Tensor] = {}
    for names in by_dtype.values():
        flat = torch.cat([tensors[name].reshape(-1) for name in names])
        flat = flat.pin_memory() if device.type == "cuda" else flat
        parts = flat.to(device, non_blocking=True).split([tensors[name].numel() for name in names])
        found |= {name: part.view(tensors[name].shape) for name, part in zip(names, parts, strict=True)}
    return found


def moment(device: torch.device) -> Any:
    """When a device has done all that it was given until now; for a CPU that is now."""
    if device.type != "cuda":
        return time.perf_counter()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def seconds_between(began: Any, ended: Any) -> float:
    """Two moments of one device, of which the last has passed: it was waited for."""
    return float(ended - began if isinstance(began, float) else began.elapsed_time(ended) / 1000)

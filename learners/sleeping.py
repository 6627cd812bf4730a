"""A learner's memory on its GPU, given to other processes while it sleeps.

    memory = DeviceMemory("cuda")
    memory.put_away(tensors_of(module, optimizer))      # copied to page-locked memory of the host
    memory.bring_back()

The storages are emptied and filled again in place, so whatever refers to a tensor in them (a parameter, a view of a
flat buffer, an optimiser's state) stays valid; nothing may read one in between. DeepSpeed's own offload_states does not
know the optimiser of ZeRO-1 in bfloat16, nor ZeRO-3's with torch's Adam, nor weights that are not trained.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

# A page-locked block takes a power of two of bytes. Storages share blocks of this size, so that only the last one, as
# large as what is left, takes more than it holds.
BLOCK_BYTES = 2**30
# Objects of these packages are looked into, and those of no others: they hold an optimiser's tensors.
HOLDERS = ("deepspeed.", "torch.optim.")


class DeviceMemory:
    """What has been put away from one kind of device, in one call or several."""

    def __init__(self, device_type: str) -> None:
        self._device_type = device_type
        self._away: list[tuple[Tensor, list[Tensor]]] = []  # the bytes of a storage, and its copy in parts

    @torch.no_grad()
    def put_away(self, tensors: Iterable[Tensor], kept: Iterable[Tensor] = ()) -> None:
        """Empty the storages of `tensors`, but of those that `kept` share."""
        self._synchronize()
        seen = {tensor.untyped_storage().data_ptr() for tensor in kept}
        emptied = []
        for tensor in tensors:
            storage = tensor.untyped_storage()
            address = storage.data_ptr()
            if tensor.device.type == self._device_type and storage.nbytes() and address not in seen:
                seen.add(address)
                emptied.append(torch.empty(0, dtype=torch.uint8, device=tensor.device).set_(storage))
        copies = _copied(emptied)
        self._synchronize()
        for whole in emptied:
            whole.untyped_storage().resize_(0)
        self._away += zip(emptied, copies, strict=True)

    @torch.no_grad()
    def bring_back(self) -> None:
        for whole, on_host in self._away:
            whole.untyped_storage().resize_(len(whole))
            if not on_host:
                whole.zero_()
                continue
            for part, copy in zip(whole.split([len(each) for each in on_host]), on_host, strict=True):
                part.copy_(copy, non_blocking=True)
        self._synchronize()
        self._away = []

    def _synchronize(self) -> None:
        if self._device_type == "cuda" and torch.cuda.is_available():
            torch.cuda.synchronize()


def _copied(storages: Sequence[Tensor]) -> list[list[Tensor]]:
    """Of each storage's bytes a copy, in parts of page-locked blocks, which may still be under way; nothing of one that
    is all zero, as gradients are between steps."""
    is_zero = [not bool(whole.any()) for whole in storages]
    left = sum(len(whole) for whole, zero in zip(storages, is_zero, strict=True) if not zero)
    block, copies = torch.empty(0, dtype=torch.uint8), []
    for whole, zero in zip(storages, is_zero, strict=True):
        parts: list[Tensor] = []
        done = len(whole) if zero else 0
        while done < len(whole):
            if not len(block):
                block = torch.empty(min(left, BLOCK_BYTES), dtype=torch.uint8, pin_memory=whole.is_cuda)
            size = min(len(block), len(whole) - done)
            part, block = block[:size], block[size:]
            part.copy_(whole[done : done + size], non_blocking=True)
            parts.append(part)
            done, left = done + size, left - size
        copies.append(parts)
    return copies


def tensors_of(*roots: Any) -> Iterator[Tensor]:
    """Every tensor that is reached from `roots` through containers, modules, tensors' own attributes (gradients,
    ZeRO-3's parts) and the objects of HOLDERS."""
    left, seen = list(roots), dict[int, Any]()  # held, so that no other object gets the id of one that was seen
    while left:
        each = left.pop()
        if id(each) in seen:
            continue
        seen[id(each)] = each
        if isinstance(each, Tensor):
            yield each
            left.append(each.grad if each.is_leaf else None)
            left.append(getattr(each, "__dict__", None))
        elif isinstance(each, dict):
            left += [*each.keys(), *each.values()]
        elif isinstance(each, list | tuple | set):
            left += each
        elif isinstance(each, nn.Module):
            left += [*each.parameters(), *each.buffers()]
        elif type(each).__module__.startswith(HOLDERS):
            left.append(vars(each) if hasattr(each, "__dict__") else None)


def weights_of(module: nn.Module) -> list[Tensor]:
    """A module's parameters, under ZeRO-3 this rank's parts of them, and its buffers."""
    parts = [getattr(each, "ds_tensor", each) for each in module.parameters()]
    return [*module.parameters(), *parts, *module.buffers()]

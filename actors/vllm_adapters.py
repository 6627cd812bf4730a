"""The low-rank adapters of one vLLM engine: its learner's newest, and saved ones that requests name.

vLLM caches adapters by their id, and prefixes by the adapter's name. So every adapter that is loaded gets a new id and
a new name. A removed adapter is first left alone until the requests that use it have ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from spag_ray.errors import EngineError, WeightSyncError, reason_of
from spag_ray.host.shared_memory import folder_in_shared_memory
from spag_ray.weights.snapshot import Snapshot


@dataclass(eq=False)
class Adapter:
    """An adapter in the engine, and the number of running requests that use it."""

    lora: Any  # vLLM's LoRARequest
    version: int
    num_requests: int = 0
    unused: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.unused.set()

    @contextlib.contextmanager
    def in_use(self) -> Iterator[None]:
        self.num_requests += 1
        self.unused.clear()
        try:
            yield
        finally:
            self.num_requests -= 1
            if not self.num_requests:
                self.unused.set()


class EngineAdapters:
    """`engine` is vLLM's AsyncLLM, with room for the newest adapter and the one before it, or for all saved ones."""

    def __init__(self, engine: Any, engine_name: str) -> None:
        self._engine = engine
        self._engine_name = engine_name
        self._ids = itertools.count(1)
        self._retired: Adapter | None = None  # the one before the newest
        self._saved: dict[tuple[str, int], Adapter] = {}  # by (folder, version)
        self._names: dict[str, Adapter] = {}
        self.newest: Adapter | None = None

    @contextlib.contextmanager
    def use(self, name: str | None) -> Iterator[Adapter | None]:
        """The adapter of this name, which stays until the block ends; without a name the newest, None if there is
        none. Raises EngineError for a name that is not held."""
        adapter = self.newest
        if name is not None and (adapter := self._names.get(name)) is None:
            held = ", ".join(sorted(self._names)) or "none"
            raise EngineError(f"engine {self._engine_name} holds no adapter {name!r}; it holds {held}")
        with contextlib.nullcontext() if adapter is None else adapter.in_use():
            yield adapter

    async def load(self, snapshot: Snapshot, config: Mapping[str, Any]) -> None:
        """Make the snapshot's adapter the newest. The previous one is kept for the requests that use it, so the one
        before that is removed first. Raises WeightSyncError."""
        import torch
        from safetensors.torch import save_file

        from spag_ray.channels.buckets import tensors_of

        tensors: dict[str, torch.Tensor] = {}
        async for bucket in snapshot.buckets():
            bucket.verify()
            tensors |= tensors_of(torch.from_numpy(bucket.payload.copy()), bucket.tensors)
        if len(tensors) != snapshot.num_tensors:
            raise WeightSyncError(f"{len(tensors)} of {snapshot.num_tensors} tensors of the adapter arrived")
        if (retired := self._retired) is not None:
            await self._remove(retired)
            self._retired = None
        with folder_in_shared_memory() as folder:
            save_file({name: tensor.clone() for name, tensor in tensors.items()}, folder / "adapter_model.safetensors")
            (folder / "adapter_config.json").write_text(json.dumps(dict(config)), encoding="utf-8")
            newest = await self._add(str(folder), snapshot.version)
        self._retired, self.newest = self.newest, newest

    async def hold(self, saved: Mapping[str, tuple[str, int]]) -> None:
        """Hold the adapters of these folders, {name: (folder, version)}, and remove the other saved ones. One that is
        held already is not loaded again. Raises WeightSyncError if a folder has no adapter for this model."""
        kept = {place: adapter for place, adapter in self._saved.items() if place in saved.values()}
        removed = [adapter for place, adapter in self._saved.items() if place not in kept]
        self._saved = kept
        self._names = {name: kept[place] for name, place in saved.items() if place in kept}
        for adapter in removed:
            await self._remove(adapter)
        for name, place in saved.items():
            if place not in kept:
                kept[place] = await self._add(*place)
            self._names[name] = kept[place]

    async def _add(self, folder: str, version: int) -> Adapter:
        from vllm.lora.request import LoRARequest

        number = next(self._ids)
        lora = LoRARequest(f"{self._engine_name}-{number}", number, folder)
        try:
            await self._engine.add_lora(lora)
        except Exception as error:
            raise WeightSyncError(
                f"engine {self._engine_name} could not load the adapter of version {version}: {reason_of(error)}"
            ) from error
        return Adapter(lora, version)

    async def _remove(self, adapter: Adapter) -> None:
        await adapter.unused.wait()
        await self._engine.remove_lora(adapter.lora.lora_int_id)

"""A channel for weights: its two halves, and the names of all channels.

    learner rank                                        worker of an engine
    sender = find(name).sender(weights, client, link)   receiver = find(name).receiver(*worker)
    sender.open()     -- client: init ----------->      receiver.open(told)
    sender.send()     -- client: start ---------->      (the reload of the model begins)
                      -- client: update, N times ->     receiver.receive(update)
                      -- client: finish --------->      (the reload ends) receiver.finish()
    sender.abort()    from another thread: gives up an `open` or `send` that waits for an engine that is gone
    sender.close()                                      receiver.close()

`open` and `send` are called by every rank of a learner group; rank 0 drives the engines through `client`, which has the
four methods of vLLM's VLLMWeightSyncClient. The receiver is inside EngineSide (engine_side.py), which every engine has:
whatever the channel, an engine also loads buckets (buckets.py). So saved weights, late engines, and a version whose
channel broke need no receiver. A channel is a module with these two functions; `worker`: the arguments of vLLM's
WeightTransferEngine (configurations, device, model). Without `receiver`, updates are buckets.

The configuration reads CHANNELS, so this module imports neither torch nor vllm.
"""

from __future__ import annotations

import importlib
import math
import threading
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import ModuleType
from typing import TYPE_CHECKING, Any, Literal, Protocol

from spag_ray.errors import SpagError, WeightSyncError, meant

if TYPE_CHECKING:
    import torch
    from vllm.distributed.weight_transfer.base import ParamMeta


@dataclass(frozen=True)
class Entry:
    """What a configuration and an engine need to know of a channel before its module is loaded.

    `place` is the module, with which learner ranks send to the engines themselves. None: Ray keeps the buckets of a
    version (Exporter.bucket), and engines fetch them, on any machines, while the learner goes on. An engine that starts
    later loads the same buckets, and adapters travel so too; Ray's part is in cluster/learning/weight_sync.py. `way`:
    how weights travel, in words. `gpus`: the placement in which it works, with a GPU under each engine and learner
    rank; None if it needs none. `environment`: of the engine's process.
    """

    place: str | None
    way: str
    gpus: Literal["separate", "colocated"] | None = None
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_direct(self) -> bool:
        return self.place is not None


# CUDA's handles travel from the engine to its own worker processes as pickled tuples.
_PICKLES = {"VLLM_ALLOW_INSECURE_SERIALIZATION": "1"}

CHANNELS: dict[str, Entry] = {
    "object_store": Entry(None, "by Ray's object store"),
    "shared_memory": Entry("spag_ray.channels.shared_memory", "on one machine"),
    "nccl": Entry("spag_ray.channels.nccl", "from GPU to GPU", gpus="separate"),
    "ipc": Entry("spag_ray.channels.ipc", "in one GPU's memory", gpus="colocated", environment=_PICKLES),
}


AUTO = "auto"  # in a configuration: RunConfig.channel chooses


def known_or_auto(name: str) -> str:
    """The name of a channel, or `auto`. Raises ValueError with all names for another one."""
    if name not in (AUTO, *CHANNELS):
        told = f"no channel for weights is named {name!r}; there are {', '.join(CHANNELS)}"
        raise ValueError(told + meant(name, [AUTO, *CHANNELS]))
    return name


def find(name: str) -> ModuleType:
    """The module of a channel whose learner ranks send."""
    place = CHANNELS[name].place
    assert place is not None, "engines fetch"
    return importlib.import_module(place)


@dataclass(frozen=True)
class Link:
    """The end of a learner rank. A group of `world_size` (rank 0, and every engine's workers) meets at `address`, a
    host:port. `timeout_s`: sync.timeout_s, the bound of each call to the engines."""

    rank: int
    address: str
    world_size: int
    bucket_bytes: int
    timeout_s: float


class Weights(Protocol):
    """The published weights of a learner rank (learners/export.py). Every rank iterates `each` to its end."""

    @property
    def dtype(self) -> torch.dtype: ...

    def shapes(self) -> dict[str, tuple[int, ...]]: ...

    def each(self) -> Iterator[tuple[str, torch.Tensor]]: ...


class Pass:
    """Repeated passes over a learner's weights; a WeightSource for vLLM's trainer classes."""

    def __init__(self, weights: Weights) -> None:
        self._weights = weights
        self.begin()

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of each weight, in the order of a pass."""
        item = self._weights.dtype.itemsize
        return {name: item * math.prod(shape) for name, shape in self._weights.shapes().items()}

    def metadata(self) -> list[ParamMeta]:
        from vllm.distributed.weight_transfer.base import ParamMeta

        return [ParamMeta(name, self._weights.dtype, shape) for name, shape in self._weights.shapes().items()]

    def begin(self) -> None:
        self._walk = self._weights.each()

    def __iter__(self) -> Iterator[tuple[str, torch.Tensor]]:
        self.begin()
        return self._walk

    def walk_to_the_end(self) -> None:
        """Finish a pass: the other ranks gather until its end, and wait for this one."""
        for _ in self._walk:
            pass


class ChannelBrokenError(SpagError):
    """An engine is gone that all others wait for: this version cannot arrive on this channel."""


class Sender(ABC):
    """A learner rank's half."""

    def __init__(self, weights: Weights) -> None:
        self._weights = Pass(weights)
        self._is_broken = threading.Event()

    @abstractmethod
    def open(self) -> None:
        """Connect with the engines; collective. Returns also when the connection broke: `send` then returns False."""

    def send(self) -> bool:
        """Send the current weights; collective. False if the channel broke, now or before. Raises WeightSyncError if
        no engine accepts them."""
        self._weights.begin()
        try:
            if not self._is_broken.is_set():
                self._send()
        except WeightSyncError:  # no engine accepts them
            self._weights.walk_to_the_end()
            raise
        except Exception:
            if not self._is_broken.is_set():
                raise
        # Also after the last weight was sent: it would stay gathered here (ZeRO-3), and the next step would gather less
        # here than on the other ranks.
        self._weights.walk_to_the_end()
        return not self._is_broken.is_set()

    @abstractmethod
    def _send(self) -> None: ...

    def abort(self) -> bool:
        """Called from another thread when an engine is gone. Returns whether the channel broke by that: it does where
        all engines take part in one call, and is then of no more use. Elsewhere nothing happens."""
        return False

    def close(self) -> None:  # noqa: B027  (many have nothing to give back)
        """Give back what `open` took."""


class Receiver(ABC):
    """An engine worker's half."""

    @abstractmethod
    def open(self, told: dict[str, Any]) -> None:
        """Connect with the sender, which tells `told`."""

    @abstractmethod
    def receive(self, update: dict[str, Any]) -> None:
        """Hand the tensors of one update to the model's `load_weights`."""

    def finish(self) -> None:  # noqa: B027
        """All updates of a version have arrived."""

    def close(self) -> None:  # noqa: B027
        """Give back what `open` took."""

"""Weights straight from learner ranks to engines, through vLLM's weight-transfer interface.

    every rank: sender = open_sender(channel, exporter, client, ...)      once for a set of engines
                sender.send_weights()                                     once a version; collective
    other thread: sender.abort()                                          when an engine died during a send

vLLM's trainer twins send the weights: rank 0 drives the engines through `client` (start, update x N, finish) and every
rank takes part in collective calls. `nccl` and `ipc` are vLLM's own twins; `shared_memory`, for one machine, is the
twin of the engine in actors/vllm_weights.py. No other file of this floor imports vllm.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
from torch import Tensor
from vllm.distributed.weight_transfer.base import (
    ParamMeta,
    TrainerInitInfo,
    TrainerWeightTransferEngine,
    VLLMWeightSyncClient,
    WeightSource,
)
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from learners.export import Exporter, StagingBuffer
from spag_ray.config.parts import Channel
from spag_ray.errors import LearnerError, WeightSyncError
from spag_ray.weights.shared_memory import in_shared_memory
from spag_ray.weights.snapshot import plan_buckets


class LearnerWeights(WeightSource):
    """A learner's published weights as vLLM's twins need them: described by `metadata`, iterated tensor by tensor."""

    def __init__(self, exporter: Exporter) -> None:
        self._exporter = exporter
        self.begin()

    def metadata(self) -> list[ParamMeta]:
        return [ParamMeta(name, self._exporter.dtype, shape) for name, shape in self._exporter.shapes().items()]

    def begin(self) -> None:
        """Start a new pass over the weights."""
        self._walk = self._exporter.each()

    def __iter__(self) -> Iterator[tuple[str, Tensor]]:
        self.begin()
        return self._walk

    def walk_to_the_end(self) -> None:
        """Finish a pass: the other ranks gather until its end, and wait for this one."""
        for _ in self._walk:
            pass


class Sender:
    """One of vLLM's trainer twins, and the weights that it sends."""

    def __init__(self, twin: TrainerWeightTransferEngine[Any], weights: LearnerWeights) -> None:
        self._twin = twin
        self._weights = weights
        self._is_aborted = False

    def send_weights(self) -> bool:
        """Send the current weights; collective. False if `abort` interrupted it."""
        self._weights.begin()
        try:
            self._twin.send_weights()
        except WeightSyncError:  # no engine accepts them
            self._weights.walk_to_the_end()
            raise
        except Exception:
            if not self._is_aborted:
                raise
        # Also after the last weight was sent: it would stay gathered here (ZeRO-3), and the next step would gather less
        # here than on the other ranks.
        self._weights.walk_to_the_end()
        return not self._is_aborted

    def abort(self) -> None:
        """Called when an engine died and the broadcast would wait for it forever: destroys the group, which cannot be
        used again. Does nothing on channels that send to each engine separately."""
        group = getattr(self._twin, "model_update_group", None)
        if group is not None:
            self._is_aborted = True
            group.destroy()

    def shutdown(self) -> None:
        self._twin.shutdown()


@dataclass
class SharedMemoryTrainerInit(TrainerInitInfo):
    """`bucket_bytes`: size cap of one update."""

    backend: ClassVar[str] = "shared_memory"

    bucket_bytes: int


class SharedMemoryTrainer(TrainerWeightTransferEngine[SharedMemoryTrainerInit]):
    """Rank 0 writes bucket after bucket to shared memory; the engines read each, check it and load it."""

    init_info_cls = SharedMemoryTrainerInit

    def __init__(self, client: VLLMWeightSyncClient, source: WeightSource, is_sender: bool, bucket_bytes: int) -> None:
        super().__init__(client=client, source=source, is_sender=is_sender)
        sizes = [(meta.name, torch.Size(meta.shape).numel() * meta.dtype.itemsize) for meta in source.metadata()]
        self._sizes = dict(sizes)
        self._dtype = source.metadata()[0].dtype
        self._plan = plan_buckets(sizes, bucket_bytes)
        self._staging = StagingBuffer()

    @classmethod
    def trainer_init(
        cls,
        init_info: SharedMemoryTrainerInit,
        *,
        client: VLLMWeightSyncClient,
        source: WeightSource | None = None,
    ) -> Self:
        assert source is not None
        if init_info.is_sender:
            client.init_weight_transfer_engine({})
        return cls(client, source, init_info.is_sender, init_info.bucket_bytes)

    def send_weights(self) -> None:
        assert self.source is not None
        tensors = iter(self.source)
        if not self.is_sender:
            for _ in tensors:
                pass
            return
        self.client.start_weight_update()
        for index, names in enumerate(self._plan):
            num_bytes = sum(self._sizes[name] for name in names)
            bucket = self._staging.bucket(index, self._dtype, itertools.islice(tensors, len(names)), num_bytes)
            with in_shared_memory(bucket) as update:
                self.client.update_weights(update)
        self.client.finish_weight_update()


def init_info(channel: Channel, rank: int, address: str, world_size: int, bucket_bytes: int) -> TrainerInitInfo:
    """`address` is host:port where an NCCL group of `world_size` (this sender and every engine's workers) meets."""
    if channel == "shared_memory":
        return SharedMemoryTrainerInit(bucket_bytes, rank=rank)
    if channel == "nccl":
        from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo

        host, port = address.rsplit(":", 1)
        return NCCLTrainerInitInfo(host, int(port), world_size, packed_buffer_size_bytes=bucket_bytes, rank=rank)
    if channel == "ipc":
        from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo

        return IPCTrainerInitInfo(packed=True, packed_buffer_size_bytes=bucket_bytes, rank=rank)
    raise LearnerError(f"channel {channel} has no sender in a learner")


def open_sender(
    channel: Channel,
    rank: int,
    exporter: Exporter,
    client: VLLMWeightSyncClient,
    address: str,
    world_size: int,
    bucket_bytes: int,
) -> Sender:
    """Called by every rank; connects rank 0 and the engines. Raises LearnerError if the channel needs a missing GPU."""
    if channel != "shared_memory" and not torch.cuda.is_available():
        raise LearnerError(f"sync.channel: {channel} needs a GPU under every learner rank; this rank has none")
    weights = LearnerWeights(exporter)
    if channel != "shared_memory":  # its plan gives a larger tensor a bucket of its own
        bucket_bytes = max(bucket_bytes, largest_tensor(weights))
    told = init_info(channel, rank, address, world_size, bucket_bytes)
    return Sender(WeightTransferTrainerFactory.trainer_init(told, client=client, source=weights), weights)


def largest_tensor(weights: WeightSource) -> int:
    """Bytes. vLLM's buffers have one size for a whole version, and must hold it: 467 MB for the embedding of a 1.5B."""
    return max(torch.Size(meta.shape).numel() * meta.dtype.itemsize for meta in weights.metadata())


if "shared_memory" not in WeightTransferTrainerFactory._registry:
    WeightTransferTrainerFactory.register_engine("shared_memory", SharedMemoryTrainer)

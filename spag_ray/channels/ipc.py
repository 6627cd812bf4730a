"""The channel `ipc`: the workers of an engine open the GPU memory of the learner rank on the same GPU."""

from __future__ import annotations

from typing import Any

from vllm.distributed.weight_transfer.ipc_engine import IPCTrainerInitInfo, IPCWeightTransferEngine

from spag_ray.channels.base import Link, Pass, Receiver, Sender, Weights
from spag_ray.channels.vllm_twins import TwinReceiver, TwinSender


def sender(weights: Weights, client: Any, link: Link) -> Sender:
    # One buffer for a whole version, which must hold its largest tensor: 467 MB for the embedding of a 1.5B.
    num_bytes = max(link.bucket_bytes, *Pass(weights).sizes.values())
    told = IPCTrainerInitInfo(packed=True, packed_buffer_size_bytes=num_bytes, rank=link.rank)
    return TwinSender(told, weights, client)


def receiver(*worker: Any) -> Receiver:
    return _Receiver(IPCWeightTransferEngine(*worker))


class _Receiver(TwinReceiver):
    def finish(self) -> None:
        # Only then can the learner's process reclaim the buffer that is mapped here. The next version has another.
        self._engine.shutdown()

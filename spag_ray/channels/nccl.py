"""The channel `nccl`: rank 0 broadcasts to the workers of all engines, from GPU to GPU.

A weight is added to a buffer until that has more than a bucket's bytes, and two buffers are under way at once: on each
side they take at most two buckets and the largest weights, outside of an engine's own share of its GPU.

All take part in each call of NCCL. If an engine is lost, the others wait for it, and nothing but the end of the group
frees them: the channel is broken, and opened anew for the next version.
"""

from __future__ import annotations

import threading
import warnings
from typing import Any

from vllm.distributed.weight_transfer.nccl_engine import NCCLTrainerInitInfo, NCCLWeightTransferEngine

from spag_ray.channels.base import Link, Receiver, Sender, Weights
from spag_ray.channels.vllm_twins import TwinReceiver, TwinSender

# vLLM's, of a weight that is larger than a bucket, in every version.
warnings.filterwarnings("ignore", message="Tensor '.*' has size .* exceeds buffer_size_bytes")

_GRACE_S = 10.0  # for the client, which has the same bound, to stop the engines that did not answer


def sender(weights: Weights, client: Any, link: Link) -> Sender:
    host, port = link.address.rsplit(":", 1)
    told = NCCLTrainerInitInfo(
        host, int(port), link.world_size, packed_buffer_size_bytes=link.bucket_bytes, rank=link.rank
    )
    return _Sender(told, weights, client, link.timeout_s + _GRACE_S)


def receiver(*worker: Any) -> Receiver:
    return TwinReceiver(NCCLWeightTransferEngine(*worker))


class _Sender(TwinSender):
    def __init__(self, told: NCCLTrainerInitInfo, weights: Weights, client: Any, within_s: float) -> None:
        super().__init__(told, weights, client)
        self._within_s = within_s
        self._lock = threading.Lock()  # guards the twin and whether the channel is broken
        self._is_settled = threading.Event()  # connected, failed, or given up
        self._fault: Exception | None = None

    def open(self) -> None:
        # Rank 0 waits in ncclCommInitRank until every engine has come, for ever if one died. Nothing interrupts that
        # call, so it has a thread of its own, which is left alone when `abort` or the time limit gives the group up.
        threading.Thread(target=self._connect, name="open the NCCL group", daemon=True).start()
        if not self._is_settled.wait(self._within_s):
            self.abort()
        if self._fault is not None and not self._is_broken.is_set():
            raise self._fault

    def _connect(self) -> None:
        try:
            twin = self._made()
        except Exception as fault:
            self._fault = fault
        else:
            with self._lock:
                self._twin = twin
                if self._is_broken.is_set():
                    twin.shutdown()
        self._is_settled.set()

    def abort(self) -> bool:
        with self._lock:
            self._is_broken.set()
            group = getattr(self._twin, "model_update_group", None)  # other ranks than rank 0 have none
        self._is_settled.set()
        if group is not None:
            group.destroy()
        return True

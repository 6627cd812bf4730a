"""Halves of a channel that vLLM has: its trainer's class as a Sender, its engine's class as a Receiver."""

from __future__ import annotations

from typing import Any

import torch
from vllm.distributed.weight_transfer.base import TrainerInitInfo, TrainerWeightTransferEngine, WeightTransferEngine
from vllm.distributed.weight_transfer.factory import WeightTransferTrainerFactory

from spag_ray.channels.base import Receiver, Sender, Weights
from spag_ray.errors import LearnerError


class TwinSender(Sender):
    """`told`: what vLLM's trainer class of that backend is made with. Raises LearnerError without a GPU."""

    def __init__(self, told: TrainerInitInfo, weights: Weights, client: Any) -> None:
        if not torch.cuda.is_available():
            raise LearnerError(f"sync.channel: {told.backend} needs a GPU under every learner rank; this rank has none")
        super().__init__(weights)
        self._told = told
        self._client = client
        self._twin: TrainerWeightTransferEngine[Any] | None = None

    def open(self) -> None:
        self._twin = self._made()

    def _made(self) -> TrainerWeightTransferEngine[Any]:
        """vLLM's trainer class, connected."""
        return WeightTransferTrainerFactory.trainer_init(self._told, client=self._client, source=self._weights)

    def _send(self) -> None:
        assert self._twin is not None, "not open"
        self._twin.send_weights()

    def close(self) -> None:
        if self._twin is not None:
            self._twin.shutdown()


class TwinReceiver(Receiver):
    """`engine`: vLLM's engine class of the same backend."""

    def __init__(self, engine: WeightTransferEngine[Any, Any]) -> None:
        self._engine = engine

    def open(self, told: dict[str, Any]) -> None:
        self._engine.init_transfer_engine(self._engine.parse_init_info(told))

    def receive(self, update: dict[str, Any]) -> None:
        self._engine.receive_weights(self._engine.parse_update_info(update))

    def close(self) -> None:
        self._engine.shutdown()

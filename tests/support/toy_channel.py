"""A channel of its own, in one file: the learner writes a file, whose name the engines are told."""

import tempfile
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from spag_ray.channels.base import Link, Receiver, Sender, Weights


def sender(weights: Weights, client: Any, link: Link) -> Sender:
    return ToySender(weights, client, link)


def receiver(*worker: Any) -> Receiver:
    *_, model = worker
    return ToyReceiver(model)


class ToySender(Sender):
    def __init__(self, weights: Weights, client: Any, link: Link) -> None:
        super().__init__(weights)
        self._client, self._rank = client, link.rank

    def open(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="spag_ray-toy-")
        if self._rank == 0:
            self._client.init_weight_transfer_engine({"folder": self._folder.name})

    def _send(self) -> None:
        if self._rank != 0:
            return
        weights = {name: tensor.clone() for name, tensor in self._weights}
        save_file(weights, Path(self._folder.name) / "weights")
        self._client.start_weight_update()
        self._client.update_weights({"file": "weights"})
        self._client.finish_weight_update()

    def close(self) -> None:
        self._folder.cleanup()


class ToyReceiver(Receiver):
    def __init__(self, model: Any) -> None:
        self._model = model

    def open(self, told: dict[str, Any]) -> None:
        self._folder = Path(told["folder"])

    def receive(self, update: dict[str, Any]) -> None:
        self._model.load_weights(load_file(self._folder / update["file"]).items())

"""Earlier weights, kept on the host to score turns: those of a stage's start, of self-play's, or an average.

Each rank keeps its own share of the trained weights: all of them, its part of each under ZeRO-3, the adapters with
LoRA. They have the learner's dtype, an average has float32. Nothing is kept until `take`, `read` or `load`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from learners.engine import TrainingEngine
from spag_ray.errors import RunFolderError


class StageStart:
    """See the module's docstring."""

    def __init__(self, engine: TrainingEngine) -> None:
        self._engine = engine
        self._held: dict[str, Tensor] = {}

    @property
    def is_held(self) -> bool:
        return bool(self._held)

    def forget(self) -> None:
        self._held = {}

    def take(self) -> None:
        """Keep the current weights. Makes no collective call."""
        self._held = {name: own.to("cpu", copy=True) for name, own in self._engine.own_weights().items()}

    def read(self, whole: Mapping[str, Tensor]) -> None:
        """Keep these weights: {name of a parameter: the whole weight}."""
        self._held = {
            name: self._engine.own_part(name, whole[name]).to(own.dtype, copy=True)
            for name, own in self._engine.own_weights().items()
        }

    @torch.no_grad()
    def move(self, share: float) -> None:
        """Keep `share` of what is kept, plus 1 - `share` of the current weights. The sum is kept in float32: in 16 bits
        a small step would be rounded away. Makes no collective call."""
        for name, own in self._engine.own_weights().items():
            kept = self._held[name].to(torch.float32)
            self._held[name] = kept.mul_(share).add_(own.to("cpu", torch.float32), alpha=1 - share)

    def save(self, file: Path) -> None:
        """Write this rank's share, for `load`. Raises RunFolderError when it cannot be written."""
        try:
            save_file({name: held.contiguous() for name, held in self._held.items()}, file)
        except (OSError, SafetensorError) as error:
            raise RunFolderError(f"{file}: the weights of the stage's start could not be written: {error}") from error

    def load(self, file: Path) -> None:
        """Raises RunFolderError for a damaged file."""
        try:
            self._held = load_file(file)
        except (OSError, SafetensorError) as error:
            raise RunFolderError(f"{file}: the weights of the stage's start cannot be read: {error}") from error

    @contextlib.contextmanager
    def in_place(self) -> Iterator[None]:
        """In this block the model has the kept weights, rounded to its dtype, and the current ones are on the host.
        Every rank has to enter it: passes through the model are collective."""
        assert self._held, "no weights of a stage's start are kept"
        own = self._engine.own_weights()
        # A swap rounds wider weights to the model's dtype.
        is_wider = any(self._held[name].dtype != weight.dtype for name, weight in own.items())
        kept = dict(self._held) if is_wider else None
        self._swap()
        try:
            yield
        finally:
            self._swap()
            if kept is not None:
                self._held = kept

    @torch.no_grad()
    def _swap(self) -> None:
        for name, own in self._engine.own_weights().items():
            now = own.to("cpu", copy=True)
            own.copy_(self._held[name])
            self._held[name] = now

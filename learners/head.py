"""The model's head, asked for the log-probabilities of given tokens instead of for logits.

Logits of a few hundred targets over a vocabulary of 50,000 are hundreds of megabytes, written and read again by every
operation of a softmax. Here a few rows at a time are turned into log-probabilities and entropies while they are in the
cache, and computed once more in the backward pass: nothing of the size of the vocabulary is kept between the two.

    head = TargetHead.install(model)
    with head.asked_for(rows, target_ids, temperature):
        logprobs = model(..., logits_to_keep=nodes).logits[0]         # [targets], with gradient
    head.entropies                                                    # [targets], without
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

# Rows multiplied at a time (the whole weight is read for each multiplication), and rows of their logits that go
# through a softmax at a time (16 x 50,000 x 4 bytes is 3 MB, which a cache holds).
MATMUL_ROWS = 256
SOFTMAX_ROWS = 16


class TargetHead:
    """Stands in for the forward of a model's output layer, a linear map to the vocabulary."""

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._asked: tuple[Tensor, Tensor, float | Tensor, bool] | None = None
        self._logits = layer.forward
        self.entropies: Tensor | None = None

    @classmethod
    def install(cls, model: Any) -> TargetHead:
        """Put one into `model`; asked for nothing, it gives logits as before."""
        layer = model.get_output_embeddings()
        head = cls(layer)
        layer.forward = head.forward
        model.target_head = head
        return head

    @contextlib.contextmanager
    def asked_for(
        self, rows: Tensor, targets: Tensor, temperature: float | Tensor, with_entropies: bool = True
    ) -> Iterator[None]:
        """Inside, the layer's output for hidden states [1, n, d] is [1, K]: the log-probability of targets[k] in row
        rows[k], at `temperature`, one for all rows or [n]."""
        self._asked = (rows, targets, temperature, with_entropies)
        try:
            yield
        finally:
            self._asked = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self._asked is None:
            return self._logits(hidden)
        rows, targets, temperature, with_entropies = self._asked
        layer = self._layer
        if isinstance(temperature, Tensor):
            temperature = temperature.to(_at_least_float32(hidden.dtype))
        logprobs, entropies = _TargetLogprobs.apply(
            hidden[0], layer.weight, layer.bias, rows, targets, temperature, with_entropies
        )
        self.entropies = entropies[rows] if with_entropies else None
        return logprobs[None]


class _TargetLogprobs(torch.autograd.Function):
    """hidden [n, d], weight [V, d], bias [V] or None, rows [K], targets [K] -> (log-probabilities [K], entropies [n]).

    d logprob_k / d logits of its row = onehot(target_k) - softmax.
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        rows: Tensor,
        targets: Tensor,
        temperature: float | Tensor,
        with_entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(len(rows), dtype=_at_least_float32(hidden.dtype), device=hidden.device)
        entropies = torch.zeros(len(hidden), dtype=logprobs.dtype, device=hidden.device)
        for start, logits in _chunks(hidden, weight, bias, temperature):
            normalised = logits.log_softmax(-1)
            here = (rows >= start) & (rows < start + len(logits))
            logprobs[here] = normalised[rows[here] - start, targets[here]]
            if with_entropies:
                entropies[start : start + len(logits)] = -torch.linalg.vecdot(normalised.exp(), normalised)
        ctx.save_for_backward(hidden, rows, targets)
        # Not saved as tensors: under ZeRO-3 their data is gathered anew for the backward pass.
        ctx.weight, ctx.bias, ctx.temperature = weight, bias, temperature
        ctx.mark_non_differentiable(entropies)
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, rows, targets = ctx.saved_tensors
        weight, bias, temperature = ctx.weight, ctx.bias, ctx.temperature
        gradient = gradients[0] / (temperature if isinstance(temperature, float) else temperature[rows])
        row_sums = torch.zeros(len(hidden), dtype=gradient.dtype, device=hidden.device).index_add_(0, rows, gradient)
        whole = torch.empty(len(hidden), len(weight), dtype=hidden.dtype, device=hidden.device)
        for start, logits in _chunks(hidden, weight, bias, temperature):
            end = start + len(logits)
            part = logits.softmax(-1).mul_(-row_sums[start:end, None])
            here = (rows >= start) & (rows < end)
            picked = gradient[here]
            whole[start:end] = part.index_put_((rows[here] - start, targets[here]), picked, accumulate=True)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        return (
            whole @ weight if needs_hidden else None,
            whole.T @ hidden if needs_weight else None,
            whole.sum(0) if needs_bias else None,
            *(None,) * 4,
        )


def _chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float | Tensor
) -> Iterator[tuple[int, Tensor]]:
    """(first row, logits [rows, V] of a few rows), float32 (float64 of float64 models), divided by the temperature."""
    for start in range(0, len(hidden), MATMUL_ROWS):
        logits = torch.nn.functional.linear(hidden[start : start + MATMUL_ROWS], weight, bias)
        for offset in range(0, len(logits), SOFTMAX_ROWS):
            some = logits[offset : offset + SOFTMAX_ROWS].to(_at_least_float32(logits.dtype))
            first = start + offset
            of_some = temperature if isinstance(temperature, float) else temperature[first : first + len(some), None]
            yield first, some if isinstance(of_some, float) and of_some == 1.0 else some / of_some


def _at_least_float32(dtype: torch.dtype) -> torch.dtype:
    return dtype if dtype == torch.float64 else torch.float32

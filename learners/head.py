"""The model's head, which computes the log-probabilities of given tokens instead of logits.

Logits of a few hundred targets over a vocabulary of 50,000 are hundreds of megabytes, written and read again by every
operation of a softmax. Here a few rows at a time are turned into log-probabilities and entropies (on a CPU while they
are in the cache) and computed again in the backward pass. No tensor of the vocabulary's size is kept between the two
passes. The host knows the rows of all targets in advance, so it never waits for a GPU.

    head = TargetHead.install(model)
    with head.asked_for(Targets.of(rows, target_ids, num_rows), temperature):
        logprobs = model(..., logits_to_keep=nodes).logits[0]         # [targets], with gradient
    head.entropies                                                    # [targets], with gradient
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

# Number of logits per softmax, in float32: on a CPU what its cache holds (16 rows of 50,000 words); on a
# GPU few large kernels are better than many small ones.
CPU_SOFTMAX_BYTES = 3 * 2**20
GPU_SOFTMAX_BYTES = 64 * 2**20
# Rows per multiplication on a CPU: each multiplication reads the whole weight.
MATMUL_ROWS = 256


class Targets(NamedTuple):
    """The targets of a call, sorted by row. `rows`, `ids` [K]; `places` [K]: the index of each requested target after
    sorting; `counts` [n + 1]: how many targets precede each row, always on the host."""

    rows: Tensor
    ids: Tensor
    places: Tensor
    counts: list[int]

    @classmethod
    def of(cls, rows: Tensor, ids: Tensor, num_rows: int) -> Targets:
        """rows, ids: [K] on the host, as are the results. The head needs them on the model's device."""
        rows, order = rows.sort(stable=True)
        counts = np.searchsorted(rows.numpy(), np.arange(num_rows + 1))  # torch would start all its threads for it
        return cls(rows, ids[order], order.argsort(), counts.tolist())

    def within(self, start: int, end: int) -> slice:
        """The targets in rows [start, end)."""
        return slice(self.counts[start], self.counts[end])


class TargetHead:
    """Replaces the forward of a model's output layer, a linear map to the vocabulary."""

    def __init__(self, layer: nn.Linear) -> None:
        self._layer = layer
        self._asked: tuple[Targets, float | Tensor, bool] | None = None
        self._logits = layer.forward
        self.entropies: Tensor | None = None

    @classmethod
    def install(cls, model: Any) -> TargetHead:
        """Put one into `model`. Outside of `asked_for` it returns logits as before."""
        layer = model.get_output_embeddings()
        head = cls(layer)
        layer.forward = head.forward
        model.target_head = head
        return head

    @contextlib.contextmanager
    def asked_for(self, targets: Targets, temperature: float | Tensor, with_entropies: bool = True) -> Iterator[None]:
        """In this block, the layer's output for hidden states [1, n, d] is [1, K]: the log-probability of each target
        in its row, at `temperature`, one for all rows or [n] in float32 (float64 of float64 models)."""
        self._asked = (targets, temperature, with_entropies)
        try:
            yield
        finally:
            self._asked = None

    def forward(self, hidden: Tensor) -> Tensor:
        if self._asked is None:
            return self._logits(hidden)
        targets, temperature, with_entropies = self._asked
        layer = self._layer
        logprobs, entropies = _TargetLogprobs.apply(
            hidden[0], layer.weight, layer.bias, targets, temperature, with_entropies
        )
        self.entropies = entropies[targets.rows][targets.places] if with_entropies else None
        return logprobs[targets.places][None]


class _TargetLogprobs(torch.autograd.Function):
    """hidden [n, d], weight [V, d], bias [V] or None, K targets -> (log-probabilities [K], in the order of the rows;
    entropies [n]).

    d logprob_k / d logits of its row = onehot(target_k) - softmax;   d entropy / d logits = -softmax (log softmax +
    entropy).
    """

    @staticmethod
    def forward(
        ctx: Any,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Targets,
        temperature: float | Tensor,
        with_entropies: bool,
    ) -> tuple[Tensor, Tensor]:
        logprobs = torch.empty(
            len(targets.rows), dtype=torch.promote_types(hidden.dtype, torch.float32), device=hidden.device
        )
        entropies = torch.zeros(len(hidden), dtype=logprobs.dtype, device=hidden.device)
        for start, end, logits in _chunks(hidden, weight, bias, temperature):
            normalised = logits.log_softmax(-1)
            here = targets.within(start, end)
            logprobs[here] = normalised[targets.rows[here] - start, targets.ids[here]]
            if with_entropies:
                entropies[start:end] = -torch.linalg.vecdot(normalised.exp(), normalised)
        ctx.save_for_backward(hidden, entropies)
        ctx.set_materialize_grads(False)  # None tells that the loss has no entropies
        # Not saved as tensors: under ZeRO-3 their data is gathered again for the backward pass.
        ctx.weight, ctx.bias, ctx.targets, ctx.temperature = weight, bias, targets, temperature
        return logprobs, entropies

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        hidden, entropies = ctx.saved_tensors
        weight, bias, temperature = ctx.weight, ctx.bias, ctx.temperature
        rows, ids, _, _ = targets = ctx.targets
        of_logprobs, of_entropies = gradients
        of_logprobs = torch.zeros_like(rows, dtype=entropies.dtype) if of_logprobs is None else of_logprobs
        gradient = of_logprobs / (temperature if isinstance(temperature, float) else temperature[rows])
        if of_entropies is not None:
            of_entropies = of_entropies / temperature
        row_sums = torch.zeros(len(hidden), dtype=gradient.dtype, device=hidden.device).index_add_(0, rows, gradient)
        whole = torch.empty(len(hidden), len(weight), dtype=hidden.dtype, device=hidden.device)
        for start, end, logits in _chunks(hidden, weight, bias, temperature):
            if of_entropies is None:
                part = logits.softmax(-1).mul_(-row_sums[start:end, None])
            else:
                normalised = logits.log_softmax(-1)
                away = (normalised + entropies[start:end, None]).mul_(of_entropies[start:end, None])
                part = normalised.exp_().mul_(away.add_(row_sums[start:end, None]).neg_())
            here = targets.within(start, end)
            whole[start:end] = part.index_put_((rows[here] - start, ids[here]), gradient[here], accumulate=True)
        needs_hidden, needs_weight, needs_bias = ctx.needs_input_grad[:3]
        return (
            whole @ weight if needs_hidden else None,
            whole.T @ hidden if needs_weight else None,
            whole.sum(0) if needs_bias else None,
            *(None,) * 3,
        )


def _chunks(
    hidden: Tensor, weight: Tensor, bias: Tensor | None, temperature: float | Tensor
) -> Iterator[tuple[int, int, Tensor]]:
    """(first row, the row after the last, their logits [rows, V]), float32 (float64 of float64 models), divided by the
    temperature."""
    dtype = torch.promote_types(hidden.dtype, torch.float32)
    on_cpu = hidden.device.type == "cpu"
    softmax_rows = max(1, (CPU_SOFTMAX_BYTES if on_cpu else GPU_SOFTMAX_BYTES) // (len(weight) * dtype.itemsize))
    matmul_rows = max(MATMUL_ROWS, softmax_rows) if on_cpu else softmax_rows
    for start in range(0, len(hidden), matmul_rows):
        logits = torch.nn.functional.linear(hidden[start : start + matmul_rows], weight, bias)
        for offset in range(0, len(logits), softmax_rows):
            some = logits[offset : offset + softmax_rows].to(dtype)
            first, end = start + offset, start + offset + len(some)
            if isinstance(temperature, Tensor):
                some = some / temperature[first:end, None]
            elif temperature != 1.0:
                some = some / temperature
            yield first, end, some

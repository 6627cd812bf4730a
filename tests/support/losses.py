"""The loss of a batch from log-probabilities alone, without a model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from learners.packing import pad
from learners.step_sums import StepSums
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.training_data.terms import Rows


@dataclass(frozen=True)
class Trained:
    """`loss`, without graph, because its gradients are in the log-probabilities; sums and maxima of the report."""

    loss: Tensor
    sums: dict[str, float]
    maxima: dict[str, float]

    @classmethod
    def of(
        cls,
        batch: Batch,
        objective: ObjectiveConfig,
        spec: StageSpec,
        logprobs: Sequence[Tensor],
        entropies: Sequence[Tensor] | None = None,
        at_start: bool = False,
        parts: Sequence[Sequence[int]] | None = None,
    ) -> Trained:
        """logprobs, entropies: [L] of each of `batch.samples`. parts: the samples of each micro-batch (one of all)."""
        rows = Rows.of(batch, objective, spec)
        sums = StepSums(objective, spec, at_start)
        entropies = entropies or [torch.zeros_like(each) for each in logprobs]
        total = torch.zeros(())
        for part in parts or [range(len(rows.samples))]:
            micro_batches = pad([rows.samples[index] for index in part], 10**6)
            (micro_batch,) = micro_batches
            of_rows = Rows(
                [rows.samples[index] for index in part],
                rows.kinds[list(part)],
                rows.weights[:, list(part)],
                rows.temperatures[list(part)],
            )
            order = [part[index] for index in micro_batch.sample_indices]
            theta, entropy = (torch.cat([values[index] for index in order]) for values in (logprobs, entropies))
            loss = sums.loss(theta, entropy.detach(), of_rows, micro_batch)
            if loss.requires_grad:
                loss.backward()
            total = total + loss.detach()
        figures, _ = sums.read(None)
        return cls(total, figures.sums, figures.maxima)

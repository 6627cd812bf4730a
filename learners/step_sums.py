"""The loss of an optimiser step, summed over its micro-batches, and the report of the step.

The columns of a micro-batch are copied together. The sums stay on the device until the last micro-batch
has been computed, and are read once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from learners.forward import MicroBatch, to_device
from learners.objectives import (
    BETWEEN,
    DECIDING,
    MAXIMA,
    NO_KIND,
    OF_SAMPLED,
    OF_TURNS,
    STATISTICS,
    WORD,
    TrainedTokens,
    at_least_float32,
    batch_loss,
)
from learners.utilization import Utilization
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.errors import LearnerError
from spag_ray.game.rules import Role
from spag_ray.results.lines import StepReport
from spag_ray.training_data.shares import BatchCounts
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.training_data.terms import KINDS, TERMS, Rows

_ON_DEVICE = (*TERMS, *STATISTICS)
_COUNTS = ("turns", "sampled_turns", "listened_tokens", "target_tokens", "unique_tokens", "flat_tokens")


@dataclass(frozen=True)
class Figures:
    """By name: sums (loss terms; statistics, one addend per turn; counts) and the largest values."""

    sums: dict[str, float]
    maxima: dict[str, float]

    def over_ranks(self, gathered: Callable[[Sequence[float]], NDArray[np.float64]]) -> Figures:
        """Those of all ranks, by one collective call."""
        found = gathered([*self.sums.values(), *self.maxima.values()])
        sums, maxima = np.split(found, [len(self.sums)], axis=1)
        return Figures(
            dict(zip(self.sums, sums.sum(0).tolist(), strict=True)),
            dict(zip(self.maxima, maxima.max(0).tolist(), strict=True)),
        )


class StepSums:
    """With `at_start` the weights are those with which the games were taken, so turns need no old log-probabilities."""

    def __init__(self, objective: ObjectiveConfig, spec: StageSpec, at_start: bool = False) -> None:
        self._objective = objective
        self._spec = spec
        compares = spec.method == "self_play" or spec.kl_coeff > 0
        self._needs_old = compares and not at_start
        self._sums: Tensor | None = None
        self._maxima: Tensor | None = None
        self._counts = dict.fromkeys(_COUNTS, 0.0)

    def loss(self, logprobs: Tensor, entropies: Tensor, rows: Rows, micro_batch: MicroBatch) -> Tensor:
        """This micro-batch's share of the batch's loss, 0-d; logprobs, entropies: [M] under the current weights."""
        theta = at_least_float32(logprobs)
        indices = list(micro_batch.sample_indices)
        tokens = trained_tokens(rows, indices, theta.dtype, theta.device, self._needs_old)
        found = batch_loss(theta, entropies, tokens, self._objective, self._spec)
        sums = torch.cat([found.terms.detach(), found.statistics])
        self._sums = sums if self._sums is None else self._sums + sums
        self._maxima = found.maxima if self._maxima is None else torch.maximum(self._maxima, found.maxima)
        kinds, lengths = rows.kinds[indices], np.array([rows.samples[index].num_trained for index in indices])
        is_turn = kinds == KINDS.index("turn")
        is_sampled = np.array([rows.samples[index].sampler_logprobs is not None for index in indices])
        counts = {
            "turns": is_turn.sum(),
            "sampled_turns": (is_turn & is_sampled).sum() * self._spec.trains_tokens(self._objective),
            "listened_tokens": lengths[kinds == KINDS.index("listening")].sum(),
            "target_tokens": lengths[kinds != KINDS.index("unsaid")].sum(),
            "unique_tokens": micro_batch.num_tokens,
            "flat_tokens": micro_batch.num_flat_tokens,
        }
        for name, count in counts.items():
            self._counts[name] += float(count)
        return found.total

    def read(self, gradient_norm: Tensor | None) -> tuple[Figures, float | None]:
        """What this rank summed, and the gradient's norm; the host waits for its device once."""
        found = [] if self._sums is None or self._maxima is None else [self._sums, self._maxima]
        if gradient_norm is not None:
            found.append((gradient_norm.to(found[0]) if found else gradient_norm).reshape(1))
        values = torch.cat(found).tolist() if found else []
        norm = None if gradient_norm is None else values.pop()
        values = values or [0.0] * (len(_ON_DEVICE) + len(MAXIMA))
        sums = dict(zip(_ON_DEVICE, values, strict=False)) | self._counts
        return Figures(sums, dict(zip(MAXIMA, values[len(_ON_DEVICE) :], strict=True))), norm


def trained_tokens(
    rows: Rows, indices: Sequence[int], dtype: torch.dtype, device: torch.device, needs_old: bool
) -> TrainedTokens:
    """Those of the rows `indices`, in this order, in three copies to a GPU. Columns of numbers have `dtype`.

    Raises LearnerError with `needs_old` for a turn without old log-probabilities.
    """
    samples, kinds = [rows.samples[index] for index in indices], rows.kinds[list(indices)]
    lengths = np.array([len(sample.target_ids) for sample in samples])
    num_trained = np.array([sample.num_trained for sample in samples])
    token_kinds, shares = np.repeat(kinds, lengths), np.repeat(1 / num_trained, lengths)
    of_samples = [(sample.sampler_logprobs, sample.old_logprobs, sample.ref_logprobs) for sample in samples]
    is_known = np.array([[values is not None for values in three] for three in of_samples]).T
    if needs_old and not is_known[1, kinds == KINDS.index("turn")].all():
        raise LearnerError("a turn came to the learner without its old log-probabilities; score it first")
    logprobs = np.zeros((3, int(lengths.sum())), np.float32)
    parts = np.zeros(logprobs.shape[1], np.int64)
    start = 0
    for sample, three, length in zip(samples, of_samples, lengths.tolist(), strict=True):
        for row, values in zip(logprobs, three, strict=True):
            if values is not None:
                row[start : start + length] = values
        if (claiming := sample.claiming) is not None:
            deciding, opening = start + claiming.num_deciding, start + claiming.num_opening
            parts[start:deciding], parts[deciding:opening], parts[opening : start + length] = DECIDING, BETWEEN, WORD
        if sample.forced is not None:
            forced = slice(start + sample.forced[0], start + sample.forced[1])
            token_kinds[forced], shares[forced] = NO_KIND, 0.0
        start += length
    sent = to_device(
        {
            "lengths": torch.from_numpy(lengths),
            "num_trained": torch.from_numpy(num_trained),
            "kinds": torch.from_numpy(token_kinds),
            "shares": torch.from_numpy(shares).to(dtype),
            "parts": torch.from_numpy(parts),
            "advantages": torch.tensor([sample.advantage for sample in samples], dtype=dtype),
            "weights": torch.from_numpy(rows.weights[:, list(indices)]).to(dtype),
            "logprobs": torch.from_numpy(logprobs).to(dtype),
            "is_known": torch.from_numpy(np.repeat(is_known, lengths, axis=1)),
        },
        device,
    )
    return TrainedTokens(**sent, held=frozenset(KINDS[kind] for kind in np.unique(kinds)))


def step_report(
    figures: Figures,
    counts: BatchCounts,
    objective: ObjectiveConfig,
    spec: StageSpec,
    *,
    step: int,
    gradient_norm: float | None,
    learning_rate: float,
    seconds: float,
    gpus: Utilization | None = None,
) -> StepReport:
    """The report of a step from the figures of all ranks. gradient_norm: None if the step was skipped. gpus: None on
    CPUs."""
    sums, maxima = figures.sums, figures.maxima
    tokens, targets = sums["unique_tokens"], sums["target_tokens"]
    losses: dict[str, Any] = {f"{term}_loss": sums[term] if _is_on(term, objective, spec) else None for term in TERMS}
    return StepReport(
        step=step,
        loss=sum(sums[term] for term in TERMS),
        listening_nats=sums["listened_nats"] / sums["listened_tokens"] if sums["listened_tokens"] else None,
        num_listened=counts.num_listened if spec.listening_coeff else None,
        gradient_norm=math.nan if gradient_norm is None else gradient_norm,
        learning_rate=learning_rate,
        entropy=sums["entropy"] / sums["turns"] if sums["turns"] else math.nan,
        attacker_weight=counts.role_weights[Role.ATTACKER],
        defender_weight=counts.role_weights[Role.DEFENDER],
        num_target_tokens=int(targets),
        num_unique_tokens=int(tokens),
        num_flat_tokens=int(sums["flat_tokens"]),
        unique_share=tokens / max(sums["flat_tokens"], 1.0),
        tokens_per_s=tokens / seconds,
        tokens_per_s_per_gpu=None if gpus is None else tokens / seconds / gpus.num_gpus,
        mfu=None if gpus is None else gpus.mfu(tokens, targets, seconds),
        gpu_memory_bytes=int(maxima["gpu_memory_bytes"]) if "gpu_memory_bytes" in maxima else None,
        seconds=seconds,
        skipped=gradient_norm is None,
        compute_s=maxima.get("compute_s", math.nan),
        **losses,
        **_of_turns(figures, counts, objective, spec),
    )


def _of_turns(figures: Figures, counts: BatchCounts, objective: ObjectiveConfig, spec: StageSpec) -> dict[str, Any]:
    """What a report says of trained turns, as far as it applies."""
    sums, found = figures.sums, dict[str, Any]()
    turns, sampled = sums["turns"], sums["sampled_turns"]
    if not turns:
        return found
    found |= {"turn_tokens_mean": counts.num_tokens / counts.num_turns, "turn_tokens_max": counts.max_tokens}
    if spec.method == "self_play":
        found |= {f"advantage_{name}": getattr(counts, f"advantage_{name}") for name in ("mean", "std", "zeros")}
    if spec.trains_tokens(objective):
        found |= {name: sums[name] / turns for name in OF_TURNS}
        found["kl"] = found.pop("divergence")
        found["clip_fraction_low"] = (sums["clip_fraction"] - sums["clip_fraction_high"]) / turns
        found["ratio_max"] = figures.maxima["ratio_max"]
        if sampled:
            found |= {name: sums[name] / sampled for name in OF_SAMPLED}
            found["gap_max"] = figures.maxima["gap_max"]
    return found


def _is_on(term: str, objective: ObjectiveConfig, spec: StageSpec) -> bool:
    """Whether a term has a line: always, or if its coefficient is not 0, which a stage or the objective has."""
    key = f"{term.removesuffix('_bonus')}_coeff"
    return term in ("policy", "kl", "sft") or bool(getattr(spec if hasattr(spec, key) else objective, key))

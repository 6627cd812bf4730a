"""The loss of a part of one optimiser step's global batch (shares.py).

A learner runs a few turns at a time. `BatchLoss` turns their log-probabilities into their share of the whole batch's
loss, independent of the other micro-batches and ranks, so the gradients of all of them add up to one gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from learners.objectives import (
    TurnStats,
    claiming_piece,
    listening_piece,
    published_imitation_terms,
    published_offline_po_terms,
    sft_piece,
    spag_game_pieces,
    spag_turn_terms,
    unsaid_piece,
)
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.errors import LearnerError
from spag_ray.training_data.samples import TurnSample
from spag_ray.training_data.shares import Batch, Item

Method = Literal["imitation", "self_play"]


@dataclass
class BatchSums:
    """A rank's sums over its micro-steps for the report: loss terms; statistics, one addend per turn; counts."""

    policy: float = 0.0
    kl: float = 0.0
    sft: float = 0.0
    listening: float = 0.0
    listened_nats: float = 0.0
    listened_tokens: float = 0.0
    claiming: float = 0.0
    unsaid: float = 0.0
    turns: float = 0.0
    entropy: float = 0.0
    divergence: float = 0.0
    clip_fraction: float = 0.0
    ratio: float = 0.0
    sampled_turns: float = 0.0
    mismatch: float = 0.0
    gap: float = 0.0
    gap_k3: float = 0.0
    target_tokens: float = 0.0
    unique_tokens: float = 0.0
    flat_tokens: float = 0.0


@dataclass
class BatchMaxima:
    """The largest values that a rank saw in its micro-steps."""

    ratio: float = 0.0
    gap: float = 0.0
    compute_s: float = 0.0


@dataclass
class BatchLoss:
    """The loss of a global batch, in parts; `batch` is all of it or a rank's share. `sums` and `maxima` include every
    part. With `at_start` the weights are those with which the games were taken, so turns need no old
    log-probabilities."""

    batch: Batch
    method: Method
    objective: ObjectiveConfig
    kl_coeff: float
    at_start: bool = False
    listening_coeff: float = 0.0
    sums: BatchSums = field(default_factory=BatchSums)
    maxima: BatchMaxima = field(default_factory=BatchMaxima)

    def of(self, items: Sequence[Item], logprobs: Sequence[Tensor], entropies: Sequence[Tensor]) -> Tensor:
        """These items' share of the batch's loss, 0-d; `logprobs`, `entropies` [L] each under the current weights."""
        counts = self.batch.counts
        total = logprobs[0].new_zeros(())
        for item, theta, entropy in zip(items, logprobs, entropies, strict=True):
            if item.kind == "listening":
                piece = self._listening(item, theta)
            elif item.kind == "unsaid":
                num_games = counts.num_unsaid[item.turn.role]
                piece = unsaid_piece(theta, item.num_turns, num_games, self.objective.unsaid_coeff)
                self.sums.unsaid += piece.item()
            elif item.kind == "sft":
                piece = sft_piece(theta, counts.num_rows, self.objective.sft_coeff)
                self.sums.sft += piece.item()
            else:
                if self.method == "imitation" or self.objective.name == "published":
                    piece = self._published(item, theta, counts.num_turns)
                    self.sums.policy += piece.item()
                else:
                    piece = self._spag(item, theta)
                self.sums.turns += 1
                self.sums.entropy += entropy.mean().item()
            if item.kind != "unsaid":
                self.sums.target_tokens += len(theta)
            total = total + piece
        return total

    def _listening(self, item: Item, theta: Tensor) -> Tensor:
        if (claiming := item.turn.claiming) is not None:
            deciding, rest, word = theta.tensor_split([claiming.num_deciding, claiming.num_opening])
            coeff = self.objective.claiming_coeff * claiming.share
            piece = claiming_piece(deciding, rest, word, item.num_turns, self.batch.counts.num_heard, coeff)
            self.sums.claiming += piece.item()
            return piece
        piece = listening_piece(theta, item.num_turns, self.batch.counts.num_listened, self.listening_coeff)
        self.sums.listening += piece.item()
        self.sums.listened_nats -= theta.sum().item()
        self.sums.listened_tokens += len(theta)
        return piece

    def _spag(self, item: Item, theta: Tensor) -> Tensor:
        old = self._old(item.turn, theta)
        reference, behaviour = old, old
        if item.turn.reference_logprobs is not None:
            reference = torch.tensor(item.turn.reference_logprobs, device=theta.device)
        if item.turn.behaviour_logprobs is not None:
            behaviour = torch.tensor(item.turn.behaviour_logprobs, device=theta.device)
        terms = spag_turn_terms(
            theta,
            old=old,
            ref=reference,
            mu=behaviour,
            advantage=item.turn.advantage,
            clip_range=self.objective.clip_range,
            mismatch_cap=self.objective.mismatch_cap,
            length_norm=self.objective.length_norm,
            constant_length=self.objective.constant_length,
            kl_weighting=self.objective.kl_weighting,
        )
        policy, kl = spag_game_pieces(terms, item.weight, item.num_turns, self.batch.counts.num_decided, self.kl_coeff)
        self.sums.policy += policy.item()
        self.sums.kl += kl.item()
        self._count(terms.stats, item.turn.behaviour_logprobs is not None)
        return policy + kl

    def _count(self, stats: TurnStats, was_sampled: bool) -> None:
        self.sums.divergence += stats.kl.item()
        self.sums.clip_fraction += stats.clip_fraction.item()
        self.sums.ratio += stats.ratio_mean.item()
        self.maxima.ratio = max(self.maxima.ratio, stats.ratio_max.item())
        if was_sampled:
            self.sums.sampled_turns += 1
            self.sums.mismatch += stats.mismatch_mean.item()
            self.sums.gap += stats.gap_mean.item()
            self.sums.gap_k3 += stats.gap_k3.item()
            self.maxima.gap = max(self.maxima.gap, stats.gap_max.item())

    def _published(self, item: Item, theta: Tensor, num_turns: int) -> Tensor:
        m = theta.mean().unsqueeze(0)
        if self.method == "imitation" and self.kl_coeff == 0:
            m0 = m.detach()
        else:
            m0 = self._old(item.turn, theta).mean().unsqueeze(0)
        weight = torch.tensor([item.weight], device=theta.device)
        if self.method == "imitation":
            return published_imitation_terms(m, m0, weight, self.kl_coeff, num_turns).sum()
        return published_offline_po_terms(
            m,
            m0,
            rewards=torch.tensor([item.turn.advantage], device=theta.device),
            weights=weight,
            sft_mask=torch.zeros_like(weight),
            kl_coeff=self.kl_coeff,
            sft_coeff=self.objective.sft_coeff,
            clip_range=self.objective.clip_range,
            num_game_samples=num_turns,
            num_sft_samples=1,
        ).sum()

    def _old(self, turn: TurnSample, theta: Tensor) -> Tensor:
        if turn.old_logprobs is not None:
            return torch.tensor(turn.old_logprobs, device=theta.device)
        if not self.at_start:
            raise LearnerError("a turn came to the learner without its old log-probabilities; score it first")
        return theta.detach()

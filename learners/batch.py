"""The global batch of one optimiser step and the loss of a part of it.

A learner runs a few turns at a time: `BatchLoss` turns their log-probabilities into their share of the loss of the
whole batch, whatever else is computed where, so micro-batches and ranks add up to one gradient.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from learners.objectives import (
    published_imitation_terms,
    published_offline_po_terms,
    sft_piece,
    spag_game_pieces,
    spag_turn_terms,
)
from spag_ray.config import ObjectiveConfig
from spag_ray.episode import GameSample, TurnSample
from spag_ray.errors import LearnerError

Method = Literal["imitation", "self_play"]


@dataclass(frozen=True)
class Batch:
    """The global batch of one optimiser step: decided games (never split) and SFT rows."""

    games: tuple[GameSample, ...]
    sft: tuple[TurnSample, ...] = ()

    @property
    def items(self) -> list[Item]:
        """Everything that is learned, games first."""
        turns = [Item(turn, game.weight, len(game.turns)) for game in self.games for turn in game.turns]
        return turns + [Item(row, is_sft=True) for row in self.sft]


@dataclass(frozen=True)
class Item:
    """A turn of a game of `num_turns` learned turns, or an SFT row."""

    turn: TurnSample
    weight: float = 1.0
    num_turns: int = 1
    is_sft: bool = False


@dataclass
class BatchSums:
    """What a rank adds up over its micro-steps for the report: loss terms, statistics by turn, token counts."""

    policy: float = 0.0
    kl: float = 0.0
    sft: float = 0.0
    clip_fraction: float = 0.0
    ratio: float = 0.0
    mismatch: float = 0.0
    turns: float = 0.0
    target_tokens: float = 0.0
    unique_tokens: float = 0.0
    flat_tokens: float = 0.0


@dataclass
class BatchLoss:
    """The loss of `batch`, in parts; `sums` grows with every part."""

    batch: Batch
    method: Method
    objective: ObjectiveConfig
    kl_coeff: float
    sums: BatchSums

    def of(self, items: Sequence[Item], logprobs: Sequence[Tensor]) -> Tensor:
        """These items' share of the batch's loss, 0-d; `logprobs` [L] each under the weights as they are now."""
        num_turns = sum(len(game.turns) for game in self.batch.games)
        total = logprobs[0].new_zeros(())
        for item, theta in zip(items, logprobs, strict=True):
            if item.is_sft:
                piece = sft_piece(theta, len(self.batch.sft), self.objective.sft_coeff)
                self.sums.sft += piece.item()
            elif self.method == "imitation" or self.objective.name == "published":
                piece = self._published(item, theta, num_turns)
                self.sums.policy += piece.item()
            else:
                piece = self._spag(item, theta)
            self.sums.turns += 0 if item.is_sft else 1
            self.sums.target_tokens += len(theta)
            total = total + piece
        return total

    def _spag(self, item: Item, theta: Tensor) -> Tensor:
        reference = _reference(item.turn, theta)
        behaviour = reference
        if item.turn.behaviour_logprobs is not None:
            behaviour = torch.tensor(item.turn.behaviour_logprobs, device=theta.device)
        terms = spag_turn_terms(
            theta,
            old=reference,
            ref=reference,
            mu=behaviour,
            advantage=item.turn.advantage,
            clip_range=self.objective.clip_range,
            mismatch_cap=self.objective.mismatch_cap,
        )
        policy, kl = spag_game_pieces(terms, item.weight, item.num_turns, len(self.batch.games), self.kl_coeff)
        self.sums.policy += policy.item()
        self.sums.kl += kl.item()
        self.sums.clip_fraction += terms.stats.clip_fraction.item()
        self.sums.ratio += terms.stats.ratio_mean.item()
        self.sums.mismatch += terms.stats.mismatch_mean.item()
        return policy + kl

    def _published(self, item: Item, theta: Tensor, num_turns: int) -> Tensor:
        m = theta.mean().unsqueeze(0)
        m0 = _reference(item.turn, theta).mean().unsqueeze(0)
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


def _reference(turn: TurnSample, theta: Tensor) -> Tensor:
    if turn.reference_logprobs is None:
        raise LearnerError("a turn came to the learner without its reference log-probabilities; score it first")
    return torch.tensor(turn.reference_logprobs, device=theta.device)

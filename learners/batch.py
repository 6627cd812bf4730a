"""The global batch of one optimiser step and the loss of a part of it.

A learner runs a few turns at a time. `BatchLoss` turns their log-probabilities into their share of the whole batch's
loss, independent of the other micro-batches and ranks, so the gradients of all of them add up to one gradient.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
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
from spag_ray.game.rules import Role
from spag_ray.training_data.samples import GameSample, TurnSample

Method = Literal["imitation", "self_play"]
Kind = Literal["turn", "sft", "listening", "unsaid"]


@dataclass(frozen=True)
class Batch:
    """The global batch of one optimiser step: games (never split) and SFT rows."""

    games: tuple[GameSample, ...]
    sft: tuple[TurnSample, ...] = ()

    @property
    def items(self) -> list[Item]:
        """Everything that is trained on, games first."""
        turns = [Item(turn, game.weight, len(game.turns)) for game in self.games for turn in game.turns]
        words = [
            Item(word, num_turns=len(game.listening), kind="listening")
            for game in self.games
            for word in game.listening
        ]
        places = [
            Item(place, num_turns=sum(turn[0].role is place.role for turn in game.unsaid), kind="unsaid")
            for game in self.games
            for turn in game.unsaid
            for place in turn
        ]
        return turns + words + places + [Item(row, kind="sft") for row in self.sft]

    @cached_property
    def num_decided(self) -> int:
        """Games with trained turns, N of the loss."""
        return sum(bool(game.turns) for game in self.games)

    @cached_property
    def num_listened(self) -> int:
        """Games with listened turns that train the word, K of the loss."""
        return sum(bool(game.listening) and not game.teaches_when for game in self.games)

    @cached_property
    def num_heard(self) -> int:
        """Games with listened turns, including those that train when to claim."""
        return sum(bool(game.listening) for game in self.games)

    @cached_property
    def num_unsaid(self) -> Counter[Role | None]:
        """{seat: games with turns of it that must not say some words}"""
        return Counter(role for game in self.games for role in {turn[0].role for turn in game.unsaid})


@dataclass(frozen=True)
class Item:
    """One of a game's `num_turns` trained turns, an SFT row, one of a game's `num_turns` listened turns, or a place in
    one of a seat's `num_turns` turns where a word must not be said."""

    turn: TurnSample
    weight: float = 1.0
    num_turns: int = 1
    kind: Kind = "turn"

    def temperature(self, of_turns: float) -> float:
        """Temperature of the softmax in training: that of play for sampled turns and for claims, else 1."""
        if self.turn.claiming is not None:
            return self.turn.claiming.temperature
        return of_turns if self.kind == "turn" else 1.0


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
    """The loss of `batch`, in parts; `sums` and `maxima` include every part. With `at_start` the weights are those
    with which the games were taken, so turns need no old log-probabilities."""

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
        num_turns = sum(len(game.turns) for game in self.batch.games)
        total = logprobs[0].new_zeros(())
        for item, theta, entropy in zip(items, logprobs, entropies, strict=True):
            if item.kind == "listening":
                piece = self._listening(item, theta)
            elif item.kind == "unsaid":
                num_games = self.batch.num_unsaid[item.turn.role]
                piece = unsaid_piece(theta, item.num_turns, num_games, self.objective.unsaid_coeff)
                self.sums.unsaid += piece.item()
            elif item.kind == "sft":
                piece = sft_piece(theta, len(self.batch.sft), self.objective.sft_coeff)
                self.sums.sft += piece.item()
            else:
                if self.method == "imitation" or self.objective.name == "published":
                    piece = self._published(item, theta, num_turns)
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
            piece = claiming_piece(deciding, rest, word, item.num_turns, self.batch.num_heard, coeff)
            self.sums.claiming += piece.item()
            return piece
        piece = listening_piece(theta, item.num_turns, self.batch.num_listened, self.listening_coeff)
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
        policy, kl = spag_game_pieces(terms, item.weight, item.num_turns, self.batch.num_decided, self.kl_coeff)
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


def check_turns(turns: Sequence[TurnSample], vocabulary_size: int) -> None:
    """Raises LearnerError for a token that the model's vocabulary does not have."""
    for index, turn in enumerate(turns):
        largest = max(max(turn.prompt_ids, default=0), max(turn.target_ids))
        smallest = min(min(turn.prompt_ids, default=0), min(turn.target_ids))
        if largest >= vocabulary_size or smallest < 0:
            raise LearnerError(
                f"sample {index} has token id {largest if smallest >= 0 else smallest}, the model's vocabulary has "
                f"{vocabulary_size} tokens; was it made with another model's tokenizer?"
            )

"""The losses of the paper's public code (arXiv 2404.10642), on one mean log-probability per sample."""

from __future__ import annotations

import torch
from torch import Tensor

IGNORED_LABEL = -100
# exp of a larger log-ratio is no useful signal, and float32 overflows at 88: beyond this its gradient is zero.
MAX_LOG_RATIO = 20.0


def published_imitation_terms(
    mean_logprobs: Tensor,
    reference_mean_logprobs: Tensor,
    weights: Tensor,
    kl_coeff: float,
    num_samples: int | None = None,
) -> Tensor:
    """The published imitation loss of each sample; all inputs and the result are [samples].

        weight * ( -m + kl_coeff * exp(m) * (m - m0) ) / num_samples

    `num_samples` is that of the global batch (counted here if None).
    """
    m, m0 = mean_logprobs, reference_mean_logprobs.detach()
    return weights * (-m + kl_coeff * m.exp() * (m - m0)) / (num_samples or len(m))


def published_offline_po_terms(
    mean_logprobs: Tensor,
    reference_mean_logprobs: Tensor,
    rewards: Tensor,
    weights: Tensor,
    sft_mask: Tensor,
    kl_coeff: float,
    sft_coeff: float,
    clip_range: float,
    num_game_samples: int | None = None,
    num_sft_samples: int | None = None,
) -> Tensor:
    """The published offline policy-optimisation loss of each sample; all inputs and the result are [samples].

        A = reward - kl_coeff * (m - m0)      r = exp(m - m0)
        game sample:  -weight * min(A r, A clip(r)) / num_game_samples
        SFT sample:   -weight * sft_coeff * m / num_sft_samples               (sft_mask is 1 there)

    Each kind is divided by its number of samples in the global batch (counted here if None), not by its
    summed weight. The gradient flows through A too: at r = 1 it is reward - kl_coeff.
    """
    m, m0 = mean_logprobs, reference_mean_logprobs.detach()
    is_sft = sft_mask.to(torch.bool)
    num_sft = num_sft_samples or max(int(is_sft.sum()), 1)
    num_game = num_game_samples or max(int((~is_sft).sum()), 1)
    advantage = rewards - kl_coeff * (m - m0)
    ratio = bounded_ratio(m, m0)
    surrogate = torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip_range, 1 + clip_range))
    return -weights * torch.where(is_sft, sft_coeff * m / num_sft, surrogate / num_game)


def published_imitation_loss(
    logits: Tensor, reference_logits: Tensor, labels: Tensor, weights: Tensor, kl_coeff: float
) -> Tensor:
    """The published imitation loss: logits [batch, tokens, vocabulary], unshifted labels [batch, tokens]."""
    m, m0 = mean_logprobs(logits, labels), mean_logprobs(reference_logits, labels)
    return published_imitation_terms(m, m0, weights, kl_coeff).sum()


def published_offline_po_loss(
    logits: Tensor,
    reference_logits: Tensor,
    labels: Tensor,
    rewards: Tensor,
    weights: Tensor,
    sft_mask: Tensor,
    kl_coeff: float,
    sft_coeff: float,
    clip_range: float,
) -> Tensor:
    """The published offline loss: logits [batch, tokens, vocabulary], unshifted labels [batch, tokens].

    rewards, weights, sft_mask: [batch].
    """
    m, m0 = mean_logprobs(logits, labels), mean_logprobs(reference_logits, labels)
    terms = published_offline_po_terms(m, m0, rewards, weights, sft_mask, kl_coeff, sft_coeff, clip_range)
    return terms.sum()


def mean_logprobs(logits: Tensor, labels: Tensor) -> Tensor:
    """m [batch]: the mean log-probability of each row's trained labels.

    logits [batch, tokens, vocabulary]: position t predicts labels[t + 1]; labels are -100 where untrained.
    """
    targets = labels[:, 1:]
    trained = targets != IGNORED_LABEL
    logprobs = at_least_float32(logits[:, :-1]).log_softmax(-1)
    chosen = logprobs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return chosen.masked_fill(~trained, 0.0).sum(-1) / trained.sum(-1)


def bounded_ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """exp(numerator - denominator), finite: infinity times the zero gradient of a clipped branch is NaN."""
    return (numerator - denominator).clamp(max=MAX_LOG_RATIO).exp()


def at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()

"""The losses of SPAG (arXiv 2404.10642), as pure functions of log-probabilities.

Two families. `published_*` are the losses of the paper's public code, on one mean log-probability per
sample. `spag_*` is the paper's objective without that code's artefacts, token by token under four policies:

    mu      sampled the tokens (the engine, at the sampling temperature)   theta   the learner now
    old     the learner at the round's start                               ref     frozen at the stage's start

Every loss is a sum of pieces that are already divided by the counts of the global batch (`num_*`), so a
learner runs the pieces of one micro-batch backward at a time and adds gradients. Only theta has a gradient.

    >>> logprobs = [-1.0, -2.0]
    >>> turn = TurnLogprobs(theta=logprobs, old=logprobs, ref=logprobs, mu=logprobs, advantage=1.0)
    >>> game = GameLogprobs(role="attacker", weight=2.0, turns=(turn,))
    >>> spag_loss([game], sft=[], kl_coeff=0.2, sft_coeff=0.5, clip_range=0.2, mismatch_cap=2.0).loss.item()
    -2.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

LengthNorm = Literal["mean", "constant"]
KlWeighting = Literal["none", "ratio"]
Logprobs: TypeAlias = Tensor | Sequence[float]
IGNORED_LABEL = -100
# exp of a larger log-ratio is no useful signal, and float32 overflows at 88: beyond this its gradient is zero.
MAX_LOG_RATIO = 20.0
MIN_ASKED = 1e-6  # below it, the gradient of log(1 - q) is zero
MAX_SAID = 0.999  # above it, the gradient of log(1 - p) is zero


@dataclass(frozen=True)
class TurnLogprobs:
    """One trained turn: [len] log-probabilities of its tokens under four policies, and its advantage A_t.

    Lists become float64 tensors. Raises ValueError when the four differ in length or are empty.
    """

    theta: Logprobs
    old: Logprobs
    ref: Logprobs
    mu: Logprobs
    advantage: float

    def __post_init__(self) -> None:
        for name in ("theta", "old", "ref", "mu"):
            object.__setattr__(self, name, _as_tensor(getattr(self, name)))
        lengths = {len(values) for values in (self.theta, self.old, self.ref, self.mu)}
        if len(lengths) != 1 or 0 in lengths:
            raise ValueError(f"theta, old, ref, mu of a turn need one length > 0, got {sorted(lengths)}")


@dataclass(frozen=True)
class GameLogprobs:
    """The trained turns of one decided game and the weight of the role that played them."""

    role: str
    weight: float
    turns: tuple[TurnLogprobs, ...]


@dataclass(frozen=True)
class TurnStats:
    """Statistics of a turn, for metrics: 0-d tensors without gradient.

    `clip_fraction`: share of tokens on the clipped branch; `ratio_*`: exp(theta - old); `kl`: k3 of ref and theta;
    `mismatch_mean`: exp(old - mu), not capped; `gap_*`: |old - mu| and its k3, engine against learner.
    """

    clip_fraction: Tensor
    ratio_mean: Tensor
    ratio_max: Tensor
    kl: Tensor
    mismatch_mean: Tensor
    gap_mean: Tensor
    gap_max: Tensor
    gap_k3: Tensor


@dataclass(frozen=True)
class TurnTerms:
    """`policy` and `k3` of one turn (0-d, before weights and counts) and its statistics."""

    policy: Tensor
    k3: Tensor
    stats: TurnStats


@dataclass(frozen=True)
class SpagLoss:
    """loss = policy_term + kl_term + sft_term; each is 0-d and holds its coefficient."""

    loss: Tensor
    policy_term: Tensor
    kl_term: Tensor
    sft_term: Tensor


def spag_turn_terms(
    theta: Tensor,
    old: Tensor,
    ref: Tensor,
    mu: Tensor,
    advantage: float,
    clip_range: float,
    mismatch_cap: float,
    length_norm: LengthNorm = "mean",
    constant_length: int | None = None,
    kl_weighting: KlWeighting = "none",
) -> TurnTerms:
    """The clipped policy term and the k3 divergence of one turn.

        w_i = min(exp(old_i - mu_i), cap)      r_i = exp(theta_i - old_i)      d_i = ref_i - theta_i
        policy = (1/n) sum_i -w_i min(r_i A, clip(r_i) A)        k3 = (1/n) sum_i exp(d_i) - 1 - d_i

    With `kl_weighting: ratio`, k3 is (1/n) sum_i r_i (exp(d_i) - 1 - d_i), as in DeepSeek-V3.2 (arXiv 2512.02556,
    equation 7). This is unbiased for tokens that old sampled; the plain sum is unbiased for tokens of theta. Where a
    token of old has become improbable to theta, exp(d) explodes and r exp(d) does not. Its gradient is r_i (theta_i -
    ref_i).

    n is the number of tokens (`mean`) or `constant_length` (`constant`, which does not favour short turns).
    theta, old, ref, mu: [len]; bfloat16 is computed in float32. Raises ValueError for `constant` without a
    length.
    """
    theta = _at_least_float32(theta)
    old, ref, mu = (_at_least_float32(values.detach()) for values in (old, ref, mu))
    num_tokens = _divisor(theta, length_norm, constant_length)
    mismatch = _ratio(old, mu)
    ratio = _ratio(theta, old)
    unclipped = ratio * advantage
    clipped = ratio.clamp(1 - clip_range, 1 + clip_range) * advantage
    distance = (ref - theta).clamp(max=MAX_LOG_RATIO)
    divergence = torch.expm1(distance) - distance
    if kl_weighting == "ratio":  # multiplied out, so that exp(d), which may overflow, is not computed
        divergence = _ratio(ref, old) - ratio * (1 + ref - theta)
    gap = old - mu
    stats = TurnStats(
        clip_fraction=(clipped < unclipped).to(theta.dtype).mean(),
        ratio_mean=ratio.detach().mean(),
        ratio_max=ratio.detach().max(),
        kl=divergence.detach().mean(),
        mismatch_mean=mismatch.mean(),
        gap_mean=gap.abs().mean(),
        gap_max=gap.abs().max(),
        gap_k3=(torch.expm1(gap.clamp(max=MAX_LOG_RATIO)) - gap).mean(),
    )
    policy = -(mismatch.clamp(max=mismatch_cap) * torch.minimum(unclipped, clipped)).sum() / num_tokens
    return TurnTerms(policy=policy, k3=divergence.sum() / num_tokens, stats=stats)


def spag_game_pieces(
    terms: TurnTerms, weight: float, num_turns: int, num_games: int, kl_coeff: float
) -> tuple[Tensor, Tensor]:
    """One turn's share of the global loss: (policy, divergence), both 0-d.

    weight/N * policy and weight/N * kl_coeff/T_g * k3, with N = `num_games` decided games of the global batch
    and T_g = `num_turns` learned turns of this turn's game.
    """
    share = weight / num_games
    return share * terms.policy, share * kl_coeff / num_turns * terms.k3


def sft_piece(theta: Tensor, num_rows: int, sft_coeff: float) -> Tensor:
    """One SFT row's share of the global loss: sft_coeff/M * mean(-theta), M = `num_rows` of the batch."""
    return -sft_coeff / num_rows * _at_least_float32(theta).mean()


def unsaid_piece(theta: Tensor, num_turns: int, num_games: int, unsaid_coeff: float) -> Tensor:
    """One place's share of the global loss: -unsaid_coeff/(K T_g) * log(1 - p), p = exp(sum(theta)).

    theta [len] of the word's tokens at a place of an attacker's turn, K = `num_games` of the batch with such turns,
    T_g = `num_turns` of this game. Over a turn's places: minus the log-probability that it says the word nowhere.
    """
    said = _at_least_float32(theta).sum().exp().clamp(max=MAX_SAID)
    return -unsaid_coeff / (num_games * num_turns) * torch.log1p(-said)


def listening_piece(theta: Tensor, num_positions: int, num_games: int, listening_coeff: float) -> Tensor:
    """One listened turn's share of the global loss: listening_coeff/(K T_g) * mean(-theta).

    theta [len] of the word's tokens, K = `num_games` listened games of the batch, T_g = `num_positions` of this game.
    """
    return -listening_coeff / (num_games * num_positions) * _at_least_float32(theta).mean()


def claiming_piece(
    deciding: Tensor, rest: Tensor, word: Tensor, num_positions: int, num_games: int, claiming_coeff: float
) -> Tensor:
    """One listened turn's share of the global loss: claiming_coeff/(K T_g) * (cross-entropy of q with p + form).

        -p log q - (1 - p) log(1 - q),      q = exp(sum(deciding)), p = exp(sum(word)), without gradient
        form = mean(-rest)

    deciding [D], rest [R], word [W]: log-probabilities of the tokens that make a reply a claim ("I know the word"), of
    those between them and the word ("! It is"; may be empty), and of the word. At the minimum q = p: the model claims
    as often as it would be right. K = `num_games` of the batch with listened turns of either kind, T_g =
    `num_positions` of this game.
    """
    right = _at_least_float32(word.detach()).sum().exp()
    log_claims = _at_least_float32(deciding).sum()
    log_asks = torch.log(-torch.expm1(log_claims.clamp(max=-MIN_ASKED)))
    loss = -right * log_claims - (1 - right) * log_asks
    if len(rest):
        loss = loss - _at_least_float32(rest).mean()
    return claiming_coeff / (num_games * num_positions) * loss


def spag_loss(
    games: Sequence[GameLogprobs | Mapping[str, Any]],
    sft: Sequence[Logprobs],
    kl_coeff: float,
    sft_coeff: float,
    clip_range: float,
    mismatch_cap: float,
    length_norm: LengthNorm = "mean",
    constant_length: int | None = None,
) -> SpagLoss:
    """The objective `spag` of a whole batch: the sum of all its pieces.

        L = (1/N) sum_g weight_g [ sum_t policy_t + kl_coeff/T_g sum_t k3_t ] + sft_coeff/M sum mean(-theta)

    `games` are GameLogprobs or mappings with the same keys; `sft` holds theta [len] of each row. No games, or
    no rows, give 0 for their terms.
    """
    policy_pieces: list[Tensor] = []
    kl_pieces: list[Tensor] = []
    for game in map(_as_game, games):
        for turn in game.turns:
            terms = spag_turn_terms(
                turn.theta, turn.old, turn.ref, turn.mu, turn.advantage,
                clip_range, mismatch_cap, length_norm, constant_length,
            )  # fmt: skip
            policy, divergence = spag_game_pieces(terms, game.weight, len(game.turns), len(games), kl_coeff)
            policy_pieces.append(policy)
            kl_pieces.append(divergence)
    sft_pieces = [sft_piece(_as_tensor(row), len(sft), sft_coeff) for row in sft]
    policy_term, kl_term, sft_term = _total(policy_pieces), _total(kl_pieces), _total(sft_pieces)
    return SpagLoss(policy_term + kl_term + sft_term, policy_term, kl_term, sft_term)


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
    ratio = _ratio(m, m0)
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
    logprobs = _at_least_float32(logits[:, :-1]).log_softmax(-1)
    chosen = logprobs.gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return chosen.masked_fill(~trained, 0.0).sum(-1) / trained.sum(-1)


def _ratio(numerator: Tensor, denominator: Tensor) -> Tensor:
    """exp(numerator - denominator), finite: infinity times the zero gradient of a clipped branch is NaN."""
    return (numerator - denominator).clamp(max=MAX_LOG_RATIO).exp()


def _divisor(theta: Tensor, length_norm: LengthNorm, constant_length: int | None) -> int:
    if length_norm == "mean":
        return len(theta)
    if length_norm != "constant" or not constant_length:
        raise ValueError(f"length_norm is `mean`, or `constant` with constant_length; got {length_norm!r}")
    return constant_length


def _at_least_float32(values: Tensor) -> Tensor:
    return values if values.dtype == torch.float64 else values.float()


def _as_tensor(values: Logprobs) -> Tensor:
    return values if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)


def _as_game(game: GameLogprobs | Mapping[str, Any]) -> GameLogprobs:
    if isinstance(game, GameLogprobs):
        return game
    turns = tuple(TurnLogprobs(**turn) for turn in game["turns"])
    return GameLogprobs(role=game["role"], weight=game["weight"], turns=turns)


def _total(pieces: list[Tensor]) -> Tensor:
    return torch.stack(pieces).sum() if pieces else torch.zeros((), dtype=torch.float64)

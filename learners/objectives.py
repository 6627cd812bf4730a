"""The losses of SPAG (arXiv 2404.10642), as functions of the log-probabilities of all trained tokens at once.

`batch_loss` is what trains: one masked expression over the tokens of a micro-batch, with sums over the tokens of each
text. `spag_loss` and the `published_*` losses are the same functions for callers with lists or logits.

The loss `spag` is the paper's objective without its code's artefacts, token by token under four policies:

    sampler  sampled the tokens (the engine, at the sampling temperature)   theta  the learner now
    old      the learner at the round's start                               ref    frozen at the stage's start

`published` and imitation are the losses of the paper's public code, on one mean log-probability per text.

Each text's weight in a term (spag_ray/training_data/terms.py) holds the counts of the global batch, so a learner runs
one micro-batch backward at a time and adds gradients. Only theta has a gradient. Nothing here reads a value on the
host, so a GPU is never waited for.

A new term: its formula in `batch_loss`, its weight in terms.py, its key in the configuration, its line in StepReport.

    >>> logprobs = [-1.0, -2.0]
    >>> turn = {"theta": logprobs, "old": logprobs, "ref": logprobs, "mu": logprobs, "advantage": 1.0}
    >>> games = [{"role": "attacker", "weight": 2.0, "turns": [turn]}]
    >>> spag_loss(games, sft=[], kl_coeff=0.2, sft_coeff=0.5, clip_range=0.2, mismatch_cap=2.0).loss.item()
    -2.0
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.training_data.terms import KINDS, TERMS

Logprobs: TypeAlias = Tensor | Sequence[float]
IGNORED_LABEL = -100
# exp of a larger log-ratio is no useful signal, and float32 overflows at 88: beyond this its gradient is zero.
MAX_LOG_RATIO = 20.0
MIN_ASKED = 1e-6  # below it, the gradient of log(1 - q) is zero
MAX_SAID = 0.999  # above it, the gradient of log(1 - p) is zero
NO_KIND = -1  # of a token that is read and not trained
DECIDING, BETWEEN, WORD = 1, 2, 3  # the parts of a claim: "I know the word", "! It is", the word

# What `batch_loss` sums over the texts beside the terms. All but the first are of turns, one addend per turn: means
# over its tokens of the entropy, k3 of ref and theta, the share on the clipped branch, exp(theta - old), old - theta,
# the share on the upper clipped branch; and of sampled turns alone exp(old - sampler), not capped, |old - sampler| and
# its k3, engine against learner, and the share above the cap. Names are those of StepReport ("kl" is a term's here).
OF_TURNS = ("divergence", "clip_fraction", "ratio_mean", "approx_kl", "clip_fraction_high")
OF_SAMPLED = ("mismatch_mean", "gap_mean", "gap_k3", "mismatch_capped")
STATISTICS = ("listened_nats", "entropy", *OF_TURNS, *OF_SAMPLED)
MAXIMA = ("ratio_max", "gap_max")


@dataclass(frozen=True)
class TrainedTokens:
    """The M trained tokens of a micro-batch's S texts, one text after the other, on one device.

    Of each text: lengths [S] int64, its tokens, and num_trained [S] int64, those of them that are trained; advantages
    [S]; weights [terms, S] in the order of TERMS. Of each token: kinds [M] int64, places in KINDS, or NO_KIND; shares
    [M], one by num_trained of its text, and 0 for a token that is not trained; logprobs [3, M], under sampler,
    old and ref; is_known [3, M] bool, whether they are known (an unknown old is theta, the others then are old); parts
    [M] int64, of a claim, else 0. held: the kinds among these texts, known to the host.
    """

    lengths: Tensor
    num_trained: Tensor
    kinds: Tensor
    shares: Tensor
    advantages: Tensor
    weights: Tensor
    logprobs: Tensor
    is_known: Tensor
    parts: Tensor
    held: frozenset[str]

    def of_kind(self, kind: str) -> Tensor:
        """[M] bool: the tokens of this kind."""
        return self.kinds == KINDS.index(kind)

    def total(self, values: Tensor) -> Tensor:
        """[M] or [M, n] -> [S] or [S, n]: the sum over each text's tokens."""
        return torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True)  # `unsafe`: no checks on the host

    def means(self, *values: Tensor) -> tuple[Tensor, ...]:
        """[M] each -> [S] each: the mean over each text's tokens."""
        return self.total(torch.stack(values, 1) * self.shares[:, None]).unbind(1)


@dataclass(frozen=True)
class BatchLoss:
    """A micro-batch's share of the loss of its global batch: `total`, 0-d, the sum of `terms` [terms]. Without
    gradient: `statistics` and `maxima`, in the order of their names above; the maxima are 0 without (sampled) turns."""

    total: Tensor
    terms: Tensor
    statistics: Tensor
    maxima: Tensor


def batch_loss(
    theta: Tensor, entropies: Tensor, tokens: TrainedTokens, objective: ObjectiveConfig, spec: StageSpec
) -> BatchLoss:
    """theta [M]: log-probabilities of the tokens under the current weights (bfloat16 is computed in float32);
    entropies [M] of their distributions, in nats, with a gradient if there is an entropy bonus.

        spag, of a turn of n tokens with advantage A:
            w_i = min(exp(old_i - sampler_i), cap)      r_i = exp(theta_i - old_i)      d_i = ref_i - theta_i
            policy = (1/n) sum_i -w_i min(r_i A, clip(r_i) A)        kl = k3 = (1/n) sum_i exp(d_i) - 1 - d_i
        ppo-clip, dr-grpo: the same with n = 1, so that terms.py averages over tokens, and with n = constant_length
        gspo: -w min(r A, clip(r) A) of the whole turn, w and r of mean log-probabilities; kl as above
        entropy bonus, of the losses above: (1/n) sum_i -entropy_i
        listening, sft: mean(-theta)
        claiming: -p log q - (1 - p) log(1 - q) + form;  q = exp(sum(deciding)), p = exp(sum(word)) without gradient,
            form = mean(-between). At the minimum q = p: the model claims as often as it would be right.
        unsaid: -log(1 - p), p = exp(sum(theta)). Over a turn's places: minus the log-probability that it says the word
            nowhere.

    With `kl_weighting: ratio`, k3 is (1/n) sum_i r_i (exp(d_i) - 1 - d_i), as in DeepSeek-V3.2 (arXiv 2512.02556,
    equation 7). This is unbiased for tokens that old sampled; the plain sum is unbiased for tokens of theta. Where a
    token of old has become improbable to theta, exp(d) explodes and r exp(d) does not. Its gradient is r_i (theta_i -
    ref_i). With `length_norm: constant`, n is constant_length, which does not favour short turns.

    A loss that is not finite has a gradient that is not finite either, or gradient clipping would hide it.
    """
    theta = at_least_float32(theta)
    weights = dict(zip(TERMS, tokens.weights.unbind(), strict=True))
    zero = theta.new_zeros(())
    terms, statistics = dict.fromkeys(TERMS, zero), dict.fromkeys(STATISTICS, zero)
    maxima = torch.stack([zero] * len(MAXIMA))

    def own(kind: str) -> Tensor:
        """theta for the tokens of this kind, 0 for others: each formula sees its own alone."""
        return torch.where(tokens.of_kind(kind), theta, zero)

    if "turn" in tokens.held:
        turns = _Turns.of(own("turn"), tokens)
        entropies = entropies.to(theta.dtype)
        statistics["entropy"] = entropies.detach() @ turns.share
        if spec.trains_tokens(objective):
            policy, k3, maxima = _clipped(turns, tokens, objective, statistics)
            terms["policy"], terms["kl"] = weights["policy"] @ policy, weights["kl"] @ k3
            if objective.entropy_coeff:
                of_turns = tokens.total(entropies * tokens.of_kind("turn"))
                terms["entropy_bonus"] = -(weights["entropy_bonus"] @ (of_turns / _length(tokens, objective)))
        else:
            terms["policy"] = _published(turns, tokens, weights["policy"], objective, spec)
    for term in ("listening", "sft"):
        if term in tokens.held:
            terms[term] = -(weights[term] @ tokens.total(own(term) * tokens.shares))
    if "listening" in tokens.held:
        statistics["listened_nats"] = -own("listening").detach().sum()
    if "claiming" in tokens.held:
        terms["claiming"] = weights["claiming"] @ _claiming(own("claiming"), tokens)
    if "unsaid" in tokens.held:
        said = tokens.total(own("unsaid")).exp().clamp(max=MAX_SAID)
        terms["unsaid"] = -(weights["unsaid"] @ torch.log1p(-said))
    of_terms = torch.stack(list(terms.values()))
    total = _Spoilt.apply(of_terms.sum(), theta)
    return BatchLoss(total, of_terms, torch.stack(list(statistics.values())), maxima)


class _Spoilt(torch.autograd.Function):
    """The total as it is; if it is not finite, every log-probability gets a gradient that is not, also where a formula
    has none."""

    @staticmethod
    def forward(ctx: Any, total: Tensor, theta: Tensor) -> Tensor:
        ctx.save_for_backward(total, theta)
        return total.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor]:
        total, theta = ctx.saved_tensors
        return gradients[0], torch.where(torch.isfinite(total), 0.0, torch.nan).to(theta).expand_as(theta)


class _Turns(NamedTuple):
    """The turns among the tokens under their four policies, [M] each, 0 for tokens of other texts. `share` [M]: one by
    the length of the token's turn; `sampled` [M]: the same of sampled turns alone."""

    theta: Tensor
    old: Tensor
    ref: Tensor
    sampler: Tensor
    share: Tensor
    sampled: Tensor

    @classmethod
    def of(cls, theta: Tensor, tokens: TrainedTokens) -> _Turns:
        is_turn = tokens.of_kind("turn")
        has_sampler, has_old, has_ref = (tokens.is_known & is_turn).unbind()
        sampler, old, ref = tokens.logprobs.unbind()
        old = torch.where(has_old, old, theta.detach())
        share = is_turn * tokens.shares
        return cls(
            theta,
            old,
            torch.where(has_ref, ref, old),
            sampler=torch.where(has_sampler, sampler, old),
            share=share,
            sampled=share * has_sampler,
        )


def _clipped(
    turns: _Turns, tokens: TrainedTokens, objective: ObjectiveConfig, statistics: dict[str, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """(policy [S], k3 [S], maxima), see `batch_loss`. Fills in the statistics."""
    ratio, mismatch = bounded_ratio(turns.theta, turns.old), bounded_ratio(turns.old, turns.sampler)
    distance = (turns.ref - turns.theta).clamp(max=MAX_LOG_RATIO)
    divergence = torch.expm1(distance) - distance
    if objective.kl_weighting == "ratio":  # multiplied out, so that exp(d), which may overflow, is not computed
        divergence = bounded_ratio(turns.ref, turns.old) - ratio * (1 + turns.ref - turns.theta)
    is_turn = tokens.of_kind("turn")
    advantages = torch.repeat_interleave(tokens.advantages, tokens.lengths, output_size=len(ratio))
    if objective.loss == "gspo":
        theta, old, sampler = tokens.means(turns.theta, turns.old, turns.sampler)
        of_turn = bounded_ratio(old, sampler)
        policy, clipped_turns = _surrogate(bounded_ratio(theta, old), of_turn, tokens.advantages, objective)
        k3 = tokens.total(divergence * is_turn)
        both = torch.stack([clipped_turns, of_turn], 1)
        is_clipped, capped = torch.repeat_interleave(both, tokens.lengths, 0, output_size=len(ratio)).unbind(1)
    else:
        capped = mismatch
        surrogate, is_clipped = _surrogate(ratio, mismatch, advantages, objective)
        policy, k3 = tokens.total(torch.stack([surrogate, divergence], 1) * is_turn[:, None]).unbind(1)
    with torch.no_grad():
        gap = turns.old - turns.sampler
        gap_k3 = torch.expm1(gap.clamp(max=MAX_LOG_RATIO)) - gap
        gap = gap.abs()
        moved, is_high = turns.old - turns.theta, is_clipped * (advantages > 0)
        is_capped = (capped > objective.mismatch_cap).to(ratio.dtype)
        of_turns = torch.stack([divergence, is_clipped, ratio, moved, is_high]) @ turns.share
        of_sampled = torch.stack([mismatch, gap, gap_k3, is_capped]) @ turns.sampled
        statistics |= dict(zip(OF_TURNS, of_turns.unbind(), strict=True))
        statistics |= dict(zip(OF_SAMPLED, of_sampled.unbind(), strict=True))
        maxima = torch.stack([ratio * turns.share.sign(), gap * turns.sampled.sign()]).amax(1)
    length = _length(tokens, objective)
    return policy if objective.loss == "gspo" else policy / length, k3 / length, maxima


def _length(tokens: TrainedTokens, objective: ObjectiveConfig) -> Tensor | int:
    """What the sum over a turn's tokens is divided by, before its weight in the batch."""
    if objective.loss == "ppo-clip":
        return 1
    is_constant = objective.loss == "dr-grpo" or objective.length_norm == "constant"
    return (is_constant and objective.constant_length) or tokens.num_trained


def _surrogate(
    ratio: Tensor, mismatch: Tensor, advantages: Tensor, objective: ObjectiveConfig
) -> tuple[Tensor, Tensor]:
    """(-w min(r A, clip(r) A), whether the clipped branch was taken), of tokens or of turns."""
    unclipped, clipped = ratio * advantages, ratio.clamp(*objective.clip_ends) * advantages
    surrogate = mismatch.clamp(max=objective.mismatch_cap) * torch.minimum(unclipped, clipped)
    return -surrogate, (clipped < unclipped).to(ratio.dtype)


def _claiming(theta: Tensor, tokens: TrainedTokens) -> Tensor:
    """[S], see `batch_loss`."""
    is_part = torch.stack([tokens.parts == part for part in (DECIDING, BETWEEN, WORD)], dim=1).to(theta.dtype)
    log_claims, between, word = tokens.total(theta[:, None] * is_part).unbind(1)
    right = word.detach().exp()
    log_asks = torch.log(-torch.expm1(log_claims.clamp(max=-MIN_ASKED)))
    form = -between / tokens.total(is_part[:, 1].contiguous()).clamp(min=1.0)
    return -right * log_claims - (1 - right) * log_asks + form


def _published(
    turns: _Turns, tokens: TrainedTokens, weights: Tensor, objective: ObjectiveConfig, spec: StageSpec
) -> Tensor:
    """The published loss of turns, 0-d; the weights hold the number of samples."""
    m, m0 = tokens.means(turns.theta, turns.old)
    if spec.method == "imitation":
        return published_imitation_terms(m, m0, weights, spec.kl_coeff, num_samples=1).sum()
    surrogate = _published_surrogate(m, m0, tokens.advantages, spec.kl_coeff, objective.clip_range)
    return (-weights * surrogate).sum()


@dataclass(frozen=True)
class SpagLoss:
    """loss = policy_term + kl_term + sft_term; each is 0-d and holds its coefficient."""

    loss: Tensor
    policy_term: Tensor
    kl_term: Tensor
    sft_term: Tensor


def spag_loss(
    games: Sequence[Mapping[str, Any]],
    sft: Sequence[Logprobs],
    kl_coeff: float,
    sft_coeff: float,
    clip_range: float,
    mismatch_cap: float,
    length_norm: Literal["mean", "constant"] = "mean",
    constant_length: int | None = None,
    kl_weighting: Literal["none", "ratio"] = "none",
) -> SpagLoss:
    """The objective `spag` of a whole batch, as `batch_loss` computes it:

        L = (1/N) sum_g weight_g [ sum_t policy_t + kl_coeff/T_g sum_t k3_t ] + sft_coeff/M sum mean(-theta)

    `games`: mappings with `weight` and `turns`; each turn has [n] log-probabilities `theta`, `old`, `ref` and `mu` (of
    the sampler) and its `advantage`. `sft`: theta [n] of each row. Lists become float64 tensors. No games, or no rows,
    give 0 for their terms.

    Raises ValueError for settings that ObjectiveConfig refuses, and for a turn whose four lists differ in length or are
    empty.
    """
    objective = ObjectiveConfig(
        clip_range=clip_range,
        mismatch_cap=mismatch_cap,
        length_norm=length_norm,
        constant_length=constant_length,
        kl_weighting=kl_weighting,
    )
    turns = [(turn, game["weight"] / len(games), len(game["turns"])) for game in games for turn in game["turns"]]
    zero = torch.zeros((), dtype=torch.float64)
    if not turns and not sft:
        return SpagLoss(zero, zero, zero, zero)
    columns = [[_as_tensor(turn[name]) for name in ("theta", "mu", "old", "ref")] for turn, _, _ in turns]
    for theta, *others in columns:
        if {len(each) for each in others} != {len(theta)} or not len(theta):
            raise ValueError("theta, old, ref, mu of a turn need one length > 0")
    rows = [_as_tensor(row) for row in sft]
    theta = torch.cat([*(of_turn[0] for of_turn in columns), *rows])
    of_turns, of_rows = [0.0] * len(turns), [0.0] * len(rows)
    weights = dict.fromkeys(TERMS, of_turns + of_rows) | {
        "policy": [weight for _, weight, _ in turns] + of_rows,
        "kl": [weight * kl_coeff / num_turns for _, weight, num_turns in turns] + of_rows,
        "sft": of_turns + [sft_coeff / max(1, len(rows))] * len(rows),
    }
    lengths = torch.tensor([*(len(of_turn[0]) for of_turn in columns), *map(len, rows)], device=theta.device)
    num_of_turns = sum(len(of_turn[0]) for of_turn in columns)
    is_turn = torch.arange(len(theta), device=theta.device) < num_of_turns
    known = [torch.stack([each.detach().to(theta) for each in others]) for _, *others in columns]
    tokens = TrainedTokens(
        lengths=lengths,
        num_trained=lengths,
        kinds=torch.where(is_turn, KINDS.index("turn"), KINDS.index("sft")),
        shares=(1 / lengths.to(theta)).repeat_interleave(lengths, output_size=len(theta)),
        advantages=theta.new_tensor([turn["advantage"] for turn, _, _ in turns] + of_rows),
        weights=theta.new_tensor(list(weights.values())),
        logprobs=torch.cat([*known, theta.new_zeros(3, len(theta) - num_of_turns)], dim=1),
        is_known=is_turn.expand(3, -1),
        parts=torch.zeros_like(theta, dtype=torch.int64),
        held=frozenset(["turn"] * bool(turns) + ["sft"] * bool(rows)),
    )
    spec = StageSpec("self_play", 1, 0.0, kl_coeff)
    found = batch_loss(theta, torch.zeros_like(theta), tokens, objective, spec)
    terms = dict(zip(TERMS, found.terms.unbind(), strict=True))
    return SpagLoss(found.total, terms["policy"], terms["kl"], terms["sft"])


def _as_tensor(values: Logprobs) -> Tensor:
    return at_least_float32(values) if isinstance(values, Tensor) else torch.tensor(values, dtype=torch.float64)


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
    surrogate = _published_surrogate(m, m0, rewards, kl_coeff, clip_range)
    return -weights * torch.where(is_sft, sft_coeff * m / num_sft, surrogate / num_game)


def _published_surrogate(m: Tensor, m0: Tensor, rewards: Tensor, kl_coeff: float, clip_range: float) -> Tensor:
    advantage = rewards - kl_coeff * (m - m0)
    ratio = bounded_ratio(m, m0)
    return torch.minimum(advantage * ratio, advantage * ratio.clamp(1 - clip_range, 1 + clip_range))


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
    terms = published_offline_po_terms(
        m, m0, rewards, weights, sft_mask, kl_coeff=kl_coeff, sft_coeff=sft_coeff, clip_range=clip_range
    )
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

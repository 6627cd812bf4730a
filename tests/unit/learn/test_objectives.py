"""The objectives agree with the published code and with the written formula, and stay finite."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from learners.batch import BatchLoss
from learners.objectives import (
    GameLogprobs,
    KlWeighting,
    TurnLogprobs,
    mean_logprobs,
    published_imitation_loss,
    published_imitation_terms,
    published_offline_po_loss,
    published_offline_po_terms,
    sft_piece,
    spag_game_pieces,
    spag_loss,
    spag_turn_terms,
)
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.game.rules import Outcome, Role
from spag_ray.training_data.samples import GameSample, Sample, game_samples
from spag_ray.training_data.shares import Batch
from tests.support.episodes import game as played_game

torch.set_num_threads(1)

GOLDEN = Path(__file__).resolve().parents[2] / "golden"


def golden(name: str) -> list[dict[str, Any]]:
    return json.loads((GOLDEN / name).read_text(encoding="utf-8"))


def float64(values: Any, requires_grad: bool = False) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64, requires_grad=requires_grad)


Numbers = Sequence[float]


def one_turn(
    theta: Numbers,
    old: Numbers,
    ref: Numbers | None = None,
    mu: Numbers | None = None,
    advantage: float = 1.0,
    dtype: torch.dtype = torch.float64,
    **options: Any,
) -> tuple[torch.Tensor, Any]:
    leaf, *others = (torch.tensor(v, dtype=dtype) for v in (theta, old, ref or theta, mu or old))
    leaf.requires_grad_()
    old_, ref_, mu_ = others
    return leaf, spag_turn_terms(leaf, old_, ref_, mu_, advantage, clip_range=0.2, mismatch_cap=2.0, **options)


@pytest.mark.parametrize("case", golden("losses.json"))
def test_the_published_losses_and_gradients_are_those_of_the_published_code(case: dict[str, Any]) -> None:
    reference, labels = float64(case["reference_logits"]), torch.tensor(case["labels"])
    weights = float64(case["weights"])
    logits = float64(case["logits"], requires_grad=True)
    assert mean_logprobs(logits, labels).tolist() == pytest.approx(case["mean_logprob"], abs=1e-9)

    loss = published_imitation_loss(logits, reference, labels, weights, case["kl_coeff"])
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == pytest.approx(case["imitation_loss"], abs=1e-9)
    assert gradient.norm().item() == pytest.approx(case["imitation_grad_norm"], abs=1e-9)

    loss = published_offline_po_loss(
        logits, reference, labels, float64(case["rewards"]), weights, float64(case["sft_mask"]),
        case["kl_coeff"], case["sft_coeff"], case["clip_range"],
    )  # fmt: skip
    (gradient,) = torch.autograd.grad(loss, logits)
    assert loss.item() == pytest.approx(case["offline_po_loss"], abs=1e-9)
    assert gradient.norm().item() == pytest.approx(case["offline_po_grad_norm"], abs=1e-9)


@pytest.mark.parametrize("case", golden("spag_objective.json"))
def test_the_spag_loss_terms_and_gradients_are_the_golden_ones(case: dict[str, Any]) -> None:
    leaves: list[torch.Tensor] = []

    def leaf(values: Any) -> torch.Tensor:
        leaves.append(float64(values, requires_grad=True))
        return leaves[-1]

    games = [
        {**game, "turns": [{**turn, "theta": leaf(turn["theta"])} for turn in game["turns"]]} for game in case["games"]
    ]
    sft = [leaf(row) for row in case["sft"]]
    settings = {key: case[key] for key in ("kl_coeff", "sft_coeff", "clip_range", "mismatch_cap")}
    result = spag_loss(games, sft, **settings)
    for name in ("loss", "policy_term", "kl_term", "sft_term"):
        assert getattr(result, name).item() == pytest.approx(case[name], abs=1e-9), name
    result.loss.backward()
    assert len(leaves) == len(case["gradients"])
    for tensor, expected in zip(leaves, case["gradients"], strict=True):
        assert tensor.grad.tolist() == pytest.approx(expected, abs=1e-9)
    plain = spag_loss(case["games"], case["sft"], **settings)
    assert plain.loss.item() == pytest.approx(case["loss"], abs=1e-9), "plain lists are taken too"


def test_pieces_of_micro_batches_add_up_to_the_loss_of_the_batch() -> None:
    generator = torch.Generator().manual_seed(0)

    def logprobs(length: int) -> torch.Tensor:
        return -torch.rand(length, generator=generator, dtype=torch.float64)

    def turn(length: int, advantage: float) -> TurnLogprobs:
        theta, old, ref, mu = (logprobs(length) for _ in range(4))
        return TurnLogprobs(theta, old, ref, mu, advantage)

    games = [
        GameLogprobs("attacker", 0.7, (turn(4, 0.4), turn(2, 0.6))),
        GameLogprobs("defender", 3.0, (turn(5, 1.0),)),
    ]
    sft = [logprobs(3), logprobs(6)]
    total = sum(sft_piece(row, num_rows=2, sft_coeff=0.5) for row in sft)
    for game in games:
        for t in game.turns:
            terms = spag_turn_terms(t.theta, t.old, t.ref, t.mu, t.advantage, 0.2, 2.0)
            pieces = spag_game_pieces(terms, game.weight, len(game.turns), num_games=2, kl_coeff=0.2)
            total = total + sum(pieces)
    whole = spag_loss(games, sft, kl_coeff=0.2, sft_coeff=0.5, clip_range=0.2, mismatch_cap=2.0)
    assert total.item() == pytest.approx(whole.loss.item(), abs=1e-12)


def test_published_terms_of_micro_batches_add_up_given_the_global_counts() -> None:
    m, m0 = float64([-1.0, -2.0, -0.5, -3.0]), float64([-1.1, -2.5, -0.4, -2.0])
    rewards, weights = float64([0.3, 0.7, 0.0, 1.0]), float64([1.0, 2.0, 1.0, 0.5])
    is_sft = float64([0, 0, 1, 0])
    settings: dict[str, Any] = {"kl_coeff": 0.2, "sft_coeff": 0.5, "clip_range": 0.2}
    whole = published_offline_po_terms(m, m0, rewards, weights, is_sft, **settings).sum()
    parts = [
        published_offline_po_terms(
            m[s], m0[s], rewards[s], weights[s], is_sft[s], **settings, num_game_samples=3, num_sft_samples=1
        ).sum()
        for s in (slice(0, 1), slice(1, 4))
    ]
    assert sum(parts).item() == pytest.approx(whole.item(), abs=1e-12)
    whole = published_imitation_terms(m, m0, weights, 0.1).sum()
    parts = [
        published_imitation_terms(m[s], m0[s], weights[s], 0.1, num_samples=4).sum() for s in (slice(0, 1), slice(1, 4))
    ]
    assert sum(parts).item() == pytest.approx(whole.item(), abs=1e-12)


def test_only_theta_carries_a_gradient() -> None:
    theta, old, ref, mu = (torch.full((3,), -1.0, requires_grad=True) for _ in range(4))
    terms = spag_turn_terms(theta, old, ref, mu, 1.0, clip_range=0.2, mismatch_cap=2.0)
    (terms.policy + terms.k3).backward()
    assert theta.grad is not None
    assert old.grad is None
    assert ref.grad is None
    assert mu.grad is None
    assert not any(value.requires_grad for value in vars(terms.stats).values())


def test_statistics_tell_clipping_ratio_divergence_and_mismatch() -> None:
    _, terms = one_turn(theta=[-1.0, -1.0], old=[-1.0, -2.0], mu=[-1.0, -4.0])
    assert terms.stats.clip_fraction.item() == 0.5
    assert terms.stats.ratio_mean.item() == pytest.approx((1 + torch.e) / 2)
    assert terms.stats.kl.item() == 0.0
    assert terms.stats.mismatch_mean.item() == pytest.approx((1 + torch.e**2) / 2), "the statistic is not capped"
    assert terms.policy.item() == pytest.approx(-(1 * 1 + 2 * 1.2) / 2), "the weight in the loss is"


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_token_counts_as_clipped_only_where_clipping_holds_it_back(advantage: float) -> None:
    """One that became less probable though it is rewarded, and one that became more probable though it is punished,
    have to come back."""
    _, terms = one_turn([-2.0, -1.0, -1.0], [-1.0, -2.0, -1.0], advantage=advantage)
    assert terms.stats.clip_fraction.item() == pytest.approx(1 / 3)


def test_statistics_are_means_and_maxima_over_the_tokens() -> None:
    _, terms = one_turn([-1.0, -2.0], [-1.5, -2.0], ref=[-2.0, -2.0], mu=[-0.5, -2.5])
    stats = terms.stats
    assert stats.ratio_max.item() == pytest.approx(math.exp(0.5))
    assert stats.kl.item() == pytest.approx(math.exp(-1) / 2), "exp(-1) - 1 + 1 at the first token"
    assert stats.gap_mean.item() == pytest.approx((1.0 + 0.5) / 2)
    assert stats.gap_max.item() == 1.0
    assert stats.gap_k3.item() == pytest.approx((math.exp(-1) + math.exp(0.5) - 1.5) / 2)


@pytest.mark.parametrize("advantage", [0.5, -0.5])
def test_gradients_stay_finite_for_log_ratios_that_overflow_float32(advantage: float) -> None:
    theta, terms = one_turn(
        [-0.1, -200.0, -1.0], [-200.0, -0.1, -1.0], ref=[-200.0, -0.1, -1.0], mu=[-300.0, -0.1, -1.0],
        advantage=advantage, dtype=torch.float32,
    )  # fmt: skip
    (terms.policy + terms.k3).backward()
    assert torch.isfinite(theta.grad).all()
    assert all(torch.isfinite(value) for value in vars(terms.stats).values())


def test_a_small_divergence_survives_float32() -> None:
    _, terms = one_turn([-1.0], [-1.0], ref=[-1.001], dtype=torch.float32)
    assert terms.k3.item() == pytest.approx(0.001**2 / 2, rel=1e-2)


def test_bfloat16_log_probabilities_are_compared_in_float32() -> None:
    _, terms = one_turn([-1.0], [-1.25], dtype=torch.bfloat16)
    assert terms.policy.dtype == torch.float32
    assert terms.policy.item() == pytest.approx(-1.2)


def test_a_constant_length_weighs_every_token_alike() -> None:
    _, short = one_turn([-1.0], [-1.0], length_norm="constant", constant_length=4)
    _, long = one_turn([-1.0] * 4, [-1.0] * 4, length_norm="constant", constant_length=4)
    assert (short.policy.item(), long.policy.item()) == (-0.25, -1.0)
    _, apart = one_turn([-1.0] * 2, [-1.0] * 2, ref=[-2.0] * 2, length_norm="constant", constant_length=4)
    assert apart.k3.item() == pytest.approx(2 * math.exp(-1) / 4)
    with pytest.raises(ValueError, match="constant_length"):
        one_turn([-1.0], [-1.0], length_norm="constant")


def test_a_turn_with_unequal_lengths_is_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        TurnLogprobs([-1.0], [-1.0, -2.0], [-1.0], [-1.0], 1.0)


def test_an_empty_batch_is_a_loss_of_zero() -> None:
    result = spag_loss([], [], kl_coeff=0.2, sft_coeff=0.5, clip_range=0.2, mismatch_cap=2.0)
    assert result.loss.item() == 0.0


def test_a_weighted_divergence_is_the_exact_one_on_average_over_what_old_samples() -> None:
    old, theta, ref = (float64(p).softmax(-1).log() for p in ([0.0, 1.0, -2.0], [1.5, -0.5, 0.3], [0.2, 0.9, -1.0]))
    exact = (theta.exp() * (theta - ref)).sum().item()

    def expected(weighting: KlWeighting) -> float:
        terms = [
            one_turn([t], [o], ref=[r], kl_weighting=weighting)[1].k3 for t, o, r in zip(theta, old, ref, strict=True)
        ]
        return sum(p.item() * term.item() for p, term in zip(old.exp(), terms, strict=True))

    assert expected("ratio") == pytest.approx(exact, rel=1e-9)
    assert expected("none") != pytest.approx(exact, rel=0.05)


def test_a_token_that_was_given_up_dominates_the_plain_divergence_and_not_the_weighted_one() -> None:
    gradients = {}
    for weighting in ("none", "ratio"):
        leaf, terms = one_turn([-12.0, -0.6], [-0.5, -0.5], ref=[-0.5, -0.5], kl_weighting=weighting)
        terms.k3.backward()
        gradients[weighting] = leaf.grad.abs()
    assert gradients["none"][0] > 1e4
    assert gradients["ratio"].max() < 0.1


@pytest.mark.parametrize(
    ("theta", "old", "ref"), [(-12.0, -0.5, -0.5), (-21.0, -0.5, -0.5), (-22.0, -10.0, -1.0), (-0.5, -3.0, -2.0)]
)
def test_the_gradient_of_the_weighted_divergence_is_the_ratio_times_the_distance(
    theta: float, old: float, ref: float
) -> None:
    leaf, terms = one_turn([theta], [old], ref=[ref], kl_weighting="ratio")
    terms.k3.backward()
    assert leaf.grad is not None
    assert leaf.grad.item() == pytest.approx(math.exp(theta - old) * (theta - ref), rel=1e-9)


def test_a_batch_weights_its_divergence_as_its_objective_says() -> None:
    turn = Sample((1,), (2,), 1.0, (-0.5,), (-0.5,), role=Role.ATTACKER)
    batch = Batch((GameSample("one", Role.ATTACKER, 1.0, (turn,)),))

    def divergence(weighting: KlWeighting) -> float:
        loss = BatchLoss(batch, "self_play", ObjectiveConfig(kl_weighting=weighting), kl_coeff=1.0)
        loss.of(batch.items, [torch.tensor([-2.5])], [torch.zeros(1)])
        return loss.sums.kl

    assert divergence("none") == pytest.approx(math.exp(2) - 1 - 2)
    assert divergence("ratio") == pytest.approx(math.exp(-2) * (math.exp(2) - 1 - 2))


def test_each_token_of_a_turn_is_weighed_by_the_weights_that_sampled_it() -> None:
    """New weights came after the second of four tokens. The learner's own log-probability of each is -1.5."""
    episode = played_game(0, Outcome.ATTACKER_WINS, 1)
    (turn,) = episode.turns
    turn = replace(turn, token_ids=(3, 4, 5, 6), logprobs=(-1.0, -1.0, -2.0, -2.0), first_version=1, last_version=2)
    [sample] = game_samples([replace(episode, turns=(turn,))], ObjectiveConfig(role_weights="none"))
    batch = Batch((sample,))
    loss = BatchLoss(batch, "self_play", ObjectiveConfig(), kl_coeff=0.0, at_start=True)
    policy = loss.of(batch.items, [float64([-1.5] * 4)], [torch.zeros(4)])
    mismatch = (math.exp(-0.5) + math.exp(0.5)) / 2
    assert policy.item() == pytest.approx(-mismatch), "the advantage is 1, and no weight reaches the cap of 2"
    assert loss.sums.mismatch == pytest.approx(mismatch)
    assert (loss.sums.gap, loss.maxima.gap, loss.sums.sampled_turns) == (0.5, 0.5, 1)


def test_a_report_has_the_sums_of_each_figure_over_the_turns_by_all_settings_of_the_objective() -> None:
    """Two turns of a game, one of them not sampled, an instruction row, and a place where a word is not to be said."""
    objective = ObjectiveConfig(
        clip_range=0.1, mismatch_cap=1.2, length_norm="constant", constant_length=4, sft_coeff=0.7, unsaid_coeff=0.4
    )
    sampled = Sample((1,), (2, 3), 0.4, (-1.0, -3.0), (-1.5, -2.0), (-1.2, -2.5), Role.ATTACKER)
    other = Sample((1,), (2,), 0.6, None, (-0.5,), None, Role.ATTACKER)
    place, row = Sample((1,), (9,), 1.0, role=Role.ATTACKER), Sample((1,), (4, 5), 1.0)
    games = [GameSample("a", Role.ATTACKER, 1.5, (sampled, other), unsaid=((place,),))]
    games += [GameSample("b", Role.ATTACKER, 1.5, (other,))] * 2
    batch = Batch(tuple(games), (row, row))
    thetas = [float64(each) for each in ([-1.0, -2.6], [-0.4], [-0.4], [-0.4], [-2.0], [-1.0, -2.0], [-1.0, -3.0])]
    loss = BatchLoss(batch, "self_play", objective, kl_coeff=0.3)
    total = loss.of(batch.items, thetas, [float64([1.0, 3.0]), float64([0.5]), *[float64([9.0])] * 5])

    one = spag_turn_terms(
        thetas[0], float64(sampled.old_logprobs), float64(sampled.ref_logprobs),
        float64(sampled.sampler_logprobs), 0.4, 0.1, 1.2, "constant", 4,
    )  # fmt: skip
    same = float64([-0.5])
    two = spag_turn_terms(float64([-0.4]), same, same, same, 0.6, 0.1, 1.2, "constant", 4)
    policy = 1.5 / 3 * (one.policy + 3 * two.policy).item()
    kl = 1.5 / 3 * 0.3 * ((one.k3 + two.k3) / 2 + 2 * two.k3).item()
    found = loss.sums
    assert (found.policy, found.kl) == (pytest.approx(policy), pytest.approx(kl))
    assert found.sft == pytest.approx(0.7 * (1.5 + 2.0) / 2)
    assert found.unsaid == pytest.approx(-0.4 * math.log(1 - math.exp(-2)))
    assert total.item() == pytest.approx(policy + kl + found.sft + found.unsaid)
    for name, mean in (("divergence", "kl"), ("clip_fraction", "clip_fraction"), ("ratio", "ratio_mean")):
        assert getattr(found, name) == pytest.approx((getattr(one.stats, mean) + 3 * getattr(two.stats, mean)).item())
    for name, mean in (("mismatch", "mismatch_mean"), ("gap", "gap_mean"), ("gap_k3", "gap_k3")):
        assert getattr(found, name) == pytest.approx(getattr(one.stats, mean).item()), "of sampled turns alone"
    assert (found.turns, found.sampled_turns, found.target_tokens) == (4, 1, 2 + 3 + 4)
    assert found.entropy == 2.0 + 0.5 + 9.0 + 9.0
    assert (loss.maxima.ratio, loss.maxima.gap) == (one.stats.ratio_max.item(), one.stats.gap_max.item())


@pytest.mark.parametrize("kl_coeff", [0.0, 0.2])
def test_a_batch_of_the_published_objective_is_divided_by_its_turns_and_compares_with_its_start(
    kl_coeff: float,
) -> None:
    turns = (
        Sample((1,), (2, 3), 0.4, None, (-1.5, -2.0), role=Role.ATTACKER),
        Sample((1,), (2,), 0.6, None, (-0.5,), role=Role.ATTACKER),
    )
    batch = Batch((GameSample("a", Role.ATTACKER, 1.5, turns), GameSample("b", Role.ATTACKER, 1.5, turns[1:])))
    thetas = [float64([-1.0, -2.2]), float64([-0.45]), float64([-0.45])]
    loss = BatchLoss(batch, "self_play", ObjectiveConfig(name="published"), kl_coeff)
    m, m0, rewards = float64([-1.6, -0.45, -0.45]), float64([-1.75, -0.5, -0.5]), float64([0.4, 0.6, 0.6])
    wanted = published_offline_po_terms(m, m0, rewards, float64([1.5] * 3), float64([0.0] * 3), kl_coeff, 0.5, 0.2)
    assert loss.of(batch.items, thetas, thetas).item() == pytest.approx(wanted.sum().item())
    assert wanted[0].item() == pytest.approx(-1.5 * math.exp(0.15) * (0.4 - kl_coeff * 0.15) / 3), "by hand"


@pytest.mark.parametrize("kl_coeff", [0.0, 0.2])
def test_a_batch_that_is_imitated_needs_the_log_probabilities_of_the_start_only_for_the_divergence(
    kl_coeff: float,
) -> None:
    old = (-1.5, -2.0) if kl_coeff else None
    batch = Batch((GameSample("a", Role.ATTACKER, 1.5, (Sample((1,), (2, 3), 1.0, None, old),)),))
    loss = BatchLoss(batch, "imitation", ObjectiveConfig(), kl_coeff)
    found = loss.of(batch.items, [float64([-1.0, -2.2])], [torch.zeros(2)]).item()
    assert found == pytest.approx(1.5 * (1.6 + kl_coeff * math.exp(-1.6) * 0.15))

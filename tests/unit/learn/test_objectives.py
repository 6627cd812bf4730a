"""The objectives agree with the published code and with the written formula, and stay finite."""

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import pytest
import torch

from learners.objectives import (
    mean_logprobs,
    published_imitation_loss,
    published_imitation_terms,
    published_offline_po_loss,
    published_offline_po_terms,
    spag_loss,
)
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.errors import InputError
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.turn import Turn
from spag_ray.training_data.game_samples import game_samples
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec
from tests.support.episodes import game as played_game
from tests.support.losses import Trained

torch.set_num_threads(1)

GOLDEN = Path(__file__).resolve().parents[2] / "golden"
SELF_PLAY = StageSpec("self_play", num_steps=1, learning_rate=0.0, kl_coeff=1.0)


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
    **objective: Any,
) -> tuple[torch.Tensor, Trained]:
    """The loss of a batch of one turn, with a kl_coeff of 1, and the turn's log-probabilities with its gradient."""
    leaf = torch.tensor(theta, dtype=dtype, requires_grad=True)
    turn = Sample([1], [2] * len(theta), advantage, mu or old, old, ref or theta)
    batch = Batch((GameSample("one", Role.ATTACKER, 1.0, (turn,)),))
    return leaf, Trained.of(batch, ObjectiveConfig(**objective), SELF_PLAY, [leaf])


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

    games = [{**game, "turns": [{**t, "theta": leaf(t["theta"])} for t in game["turns"]]} for game in case["games"]]
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


def test_micro_batches_add_up_to_the_loss_of_the_batch() -> None:
    generator = torch.Generator().manual_seed(0)

    def text(length: int, advantage: float = 1.0) -> Sample:
        return Sample([1], [2] * length, advantage, *(-torch.rand(3, length, generator=generator)))

    games = GameSample("a", None, 0.7, (text(4, 0.4), text(2, 0.6))), GameSample("b", None, 3.0, (text(5),))
    batch = Batch(games, (text(3), text(6)))
    thetas = [-torch.rand(len(each.target_ids), generator=generator).double() for each in batch.samples]
    spec = replace(SELF_PLAY, kl_coeff=0.2)
    parts = Trained.of(batch, ObjectiveConfig(), spec, thetas, parts=[[3, 0], [2], [1, 4]])
    turns = [
        {
            "theta": theta,
            "old": t.old_logprobs,
            "ref": t.ref_logprobs,
            "mu": t.sampler_logprobs,
            "advantage": t.advantage,
        }
        for theta, t in zip(thetas, batch.samples, strict=True)
    ]
    of_games: list[dict[str, Any]] = [{"weight": 0.7, "turns": turns[:2]}, {"weight": 3.0, "turns": turns[2:3]}]
    whole = spag_loss(of_games, thetas[3:], kl_coeff=0.2, sft_coeff=0.5, clip_range=0.2, mismatch_cap=2.0)
    assert parts.loss.item() == pytest.approx(whole.loss.item(), abs=1e-12)


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
    turn: dict[str, Any] = {name: torch.full((3,), -1.0, requires_grad=True) for name in ("theta", "old", "ref", "mu")}
    games = [{"weight": 1.0, "turns": [{**turn, "advantage": 1.0}]}]
    spag_loss(games, [], kl_coeff=1.0, sft_coeff=0.5, clip_range=0.2, mismatch_cap=2.0).loss.backward()
    assert [name for name, leaf in turn.items() if leaf.grad is not None] == ["theta"]


def test_statistics_tell_clipping_ratio_divergence_and_mismatch() -> None:
    _, found = one_turn(theta=[-1.0, -1.0], old=[-1.0, -2.0], mu=[-1.0, -4.0])
    assert found.sums["clip_fraction"] == 0.5
    assert found.sums["ratio_mean"] == pytest.approx((1 + math.e) / 2)
    assert found.sums["divergence"] == 0.0
    assert found.sums["mismatch_mean"] == pytest.approx((1 + math.e**2) / 2), "the statistic is not capped"
    assert found.sums["policy"] == pytest.approx(-(1 * 1 + 2 * 1.2) / 2), "the weight in the loss is"


@pytest.mark.parametrize("advantage", [1.0, -1.0])
def test_a_token_counts_as_clipped_only_where_clipping_holds_it_back(advantage: float) -> None:
    """One that became less probable though it is rewarded, and one that became more probable though it is punished,
    have to come back."""
    _, found = one_turn([-2.0, -1.0, -1.0], [-1.0, -2.0, -1.0], advantage=advantage)
    assert found.sums["clip_fraction"] == pytest.approx(1 / 3)


def test_statistics_are_means_and_maxima_over_the_tokens() -> None:
    _, found = one_turn([-1.0, -2.0], [-1.5, -2.0], ref=[-2.0, -2.0], mu=[-0.5, -2.5])
    assert found.maxima["ratio_max"] == pytest.approx(math.exp(0.5))
    assert found.sums["divergence"] == pytest.approx(math.exp(-1) / 2), "exp(-1) - 1 + 1 at the first token"
    assert found.sums["gap_mean"] == pytest.approx((1.0 + 0.5) / 2)
    assert found.maxima["gap_max"] == 1.0
    assert found.sums["gap_k3"] == pytest.approx((math.exp(-1) + math.exp(0.5) - 1.5) / 2)


@pytest.mark.parametrize("advantage", [0.5, -0.5])
def test_gradients_stay_finite_for_log_ratios_that_overflow_float32(advantage: float) -> None:
    theta, found = one_turn(
        [-0.1, -200.0, -1.0], [-200.0, -0.1, -1.0], ref=[-200.0, -0.1, -1.0], mu=[-300.0, -0.1, -1.0],
        advantage=advantage, dtype=torch.float32,
    )  # fmt: skip
    assert torch.isfinite(theta.grad).all()
    assert all(math.isfinite(value) for value in (*found.sums.values(), *found.maxima.values()))


def test_a_small_divergence_survives_float32() -> None:
    _, found = one_turn([-1.0], [-1.0], ref=[-1.001], dtype=torch.float32)
    assert found.sums["kl"] == pytest.approx(0.001**2 / 2, rel=1e-2)


def test_bfloat16_log_probabilities_are_compared_in_float32() -> None:
    _, found = one_turn([-1.0], [-1.25], advantage=0.3, dtype=torch.bfloat16)
    theta, old = torch.tensor([-1.0], dtype=torch.bfloat16), [-1.25]
    games = [{"weight": 1.0, "turns": [{"theta": theta, "old": old, "ref": theta, "mu": old, "advantage": 0.3}]}]
    for loss in (found.loss, spag_loss(games, [], 0.2, 0.5, 0.2, 2.0).loss):
        assert loss.dtype == torch.float32
        assert loss.item() == pytest.approx(-1.2 * 0.3)


def test_a_constant_length_weighs_every_token_alike() -> None:
    _, short = one_turn([-1.0], [-1.0], length_norm="constant", constant_length=4)
    _, long = one_turn([-1.0] * 4, [-1.0] * 4, length_norm="constant", constant_length=4)
    assert (short.sums["policy"], long.sums["policy"]) == (-0.25, -1.0)
    _, apart = one_turn([-1.0] * 2, [-1.0] * 2, ref=[-2.0] * 2, length_norm="constant", constant_length=4)
    assert apart.sums["kl"] == pytest.approx(2 * math.exp(-1) / 4)
    with pytest.raises(ValueError, match="constant_length"):
        spag_loss([], [], 0.2, 0.5, 0.2, 2.0, length_norm="constant")


def test_a_turn_with_unequal_lengths_or_without_a_token_is_refused() -> None:
    for theta, old in (([-1.0], [-1.0, -2.0]), ([], [])):
        turn = {"theta": theta, "old": old, "ref": theta, "mu": theta, "advantage": 1.0}
        with pytest.raises(ValueError, match="one length"):
            spag_loss([{"weight": 1.0, "turns": [turn]}], [], 0.2, 0.5, 0.2, 2.0)


def test_an_empty_batch_is_a_loss_of_zero() -> None:
    result = spag_loss([], [], kl_coeff=0.2, sft_coeff=0.5, clip_range=0.2, mismatch_cap=2.0)
    assert result.loss.item() == 0.0


def test_a_weighted_divergence_is_the_exact_one_on_average_over_what_old_samples() -> None:
    old, theta, ref = (float64(p).softmax(-1).log() for p in ([0.0, 1.0, -2.0], [1.5, -0.5, 0.3], [0.2, 0.9, -1.0]))
    exact = (theta.exp() * (theta - ref)).sum().item()

    def expected(weighting: Literal["none", "ratio"]) -> float:
        games = [
            {"weight": p.item(), "turns": [{"theta": t, "old": o, "ref": r, "mu": o, "advantage": 1.0}]}
            for p, t, o, r in zip(old.exp(), *(each.split(1) for each in (theta, old, ref)), strict=True)
        ]
        return len(games) * spag_loss(games, [], 1.0, 0.5, 0.2, 2.0, kl_weighting=weighting).kl_term.item()

    assert expected("ratio") == pytest.approx(exact, rel=1e-9)
    assert expected("none") != pytest.approx(exact, rel=0.05)


def test_a_token_that_was_given_up_dominates_the_plain_divergence_and_not_the_weighted_one() -> None:
    gradients = {}
    for weighting in ("none", "ratio"):
        leaf, _ = one_turn([-12.0, -0.6], [-0.5, -0.5], ref=[-0.5, -0.5], advantage=0.0, kl_weighting=weighting)
        gradients[weighting] = leaf.grad.abs()
    assert gradients["none"][0] > 1e4
    assert gradients["ratio"].max() < 0.1


@pytest.mark.parametrize(
    ("theta", "old", "ref"), [(-12.0, -0.5, -0.5), (-21.0, -0.5, -0.5), (-22.0, -10.0, -1.0), (-0.5, -3.0, -2.0)]
)
def test_the_weighted_divergences_gradient_is_ratio_times_distance(theta: float, old: float, ref: float) -> None:
    leaf, _ = one_turn([theta], [old], ref=[ref], advantage=0.0, kl_weighting="ratio")
    assert leaf.grad.item() == pytest.approx(math.exp(theta - old) * (theta - ref), rel=1e-9)


def test_a_batch_weights_its_divergence_as_its_objective_says() -> None:
    plain, weighted = (one_turn([-2.5], [-0.5], [-0.5], kl_weighting=each)[1].sums["kl"] for each in ("none", "ratio"))
    assert plain == pytest.approx(math.exp(2) - 1 - 2)
    assert weighted == pytest.approx(math.exp(-2) * (math.exp(2) - 1 - 2))


def test_each_token_of_a_turn_is_weighed_by_the_weights_that_sampled_it() -> None:
    """New weights came after the second of four tokens. The learner's own log-probability of each is -1.5."""
    episode = played_game(0, Outcome.ATTACKER_WINS, 1)
    (turn,) = episode.turns
    turn = replace(turn, token_ids=(3, 4, 5, 6), logprobs=(-1.0, -1.0, -2.0, -2.0), first_version=1, last_version=2)
    [sample] = game_samples([replace(episode, turns=(turn,))], ObjectiveConfig(role_weights="none"))
    found = Trained.of(Batch((sample,)), ObjectiveConfig(), SELF_PLAY, [float64([-1.5] * 4)], at_start=True)
    mismatch = (math.exp(-0.5) + math.exp(0.5)) / 2
    assert found.loss.item() == pytest.approx(-mismatch), "the advantage is 1, and no weight reaches the cap of 2"
    assert found.sums["mismatch_mean"] == pytest.approx(mismatch)
    assert (found.sums["gap_mean"], found.maxima["gap_max"], found.sums["sampled_turns"]) == (0.5, 0.5, 1)


def test_a_report_has_the_sums_of_each_figure_over_the_turns_by_all_settings_of_the_objective() -> None:
    """Two turns of a game, one of them not sampled, an instruction row, and a place where a word is not to be said."""
    of_turns: dict[str, Any] = {
        "clip_range": 0.1, "mismatch_cap": 1.2, "length_norm": "constant", "constant_length": 4,
    }  # fmt: skip
    objective = ObjectiveConfig(sft_coeff=0.7, unsaid_coeff=0.4, **of_turns)
    sampled = Sample((1,), (2, 3), 0.4, (-1.0, -3.0), (-1.5, -2.0), (-1.2, -2.5), Role.ATTACKER)
    other = Sample((1,), (2,), 0.6, None, (-0.5,), None, Role.ATTACKER)
    place, row = Sample((1,), (9,), role=Role.ATTACKER), Sample((1,), (4, 5))
    games = [GameSample("a", Role.ATTACKER, 1.5, (sampled, other), unsaid=((place,),))]
    games += [GameSample("b", Role.ATTACKER, 1.5, (other,))] * 2
    batch = Batch(tuple(games), (row, row))
    thetas = [float64(each) for each in ([-1.0, -2.6], [-0.4], [-0.4], [-0.4], [-2.0], [-1.0, -2.0], [-1.0, -3.0])]
    entropies = [float64([1.0, 3.0]), float64([0.5]), *[float64([9.0])] * 3, *[float64([9.0, 9.0])] * 2]
    found = Trained.of(batch, objective, replace(SELF_PLAY, kl_coeff=0.3), thetas, entropies)

    _, one = one_turn([-1.0, -2.6], [-1.5, -2.0], [-1.2, -2.5], [-1.0, -3.0], 0.4, **of_turns)
    _, two = one_turn([-0.4], [-0.5], [-0.5], [-0.5], 0.6, **of_turns)
    policy = 1.5 / 3 * (one.sums["policy"] + 3 * two.sums["policy"])
    kl = 1.5 / 3 * 0.3 * ((one.sums["kl"] + two.sums["kl"]) / 2 + 2 * two.sums["kl"])
    sft, unsaid = 0.7 * (1.5 + 2.0) / 2, -0.4 * math.log(1 - math.exp(-2))
    expected = {"policy": policy, "kl": kl, "sft": sft, "unsaid": unsaid}
    for name in ("divergence", "clip_fraction", "ratio_mean"):
        expected[name] = one.sums[name] + 3 * two.sums[name]
    for name in ("mismatch_mean", "gap_mean", "gap_k3"):
        expected[name] = one.sums[name]  # of sampled turns alone
    assert {name: found.sums[name] for name in expected} == pytest.approx(expected)
    assert found.loss.item() == pytest.approx(policy + kl + sft + unsaid)
    counts = [found.sums[name] for name in ("turns", "sampled_turns", "target_tokens", "entropy")]
    assert counts == [4, 1, 2 + 3 + 4, 2.0 + 0.5 + 9.0 + 9.0]
    assert found.maxima == one.maxima


@pytest.mark.parametrize("kl_coeff", [0.0, 0.2])
def test_a_published_batch_is_divided_by_its_turns_and_compares_with_its_start(kl_coeff: float) -> None:
    turns = (
        Sample((1,), (2, 3), 0.4, None, (-1.5, -2.0), role=Role.ATTACKER),
        Sample((1,), (2,), 0.6, None, (-0.5,), role=Role.ATTACKER),
    )
    batch = Batch((GameSample("a", Role.ATTACKER, 1.5, turns), GameSample("b", Role.ATTACKER, 1.5, turns[1:])))
    thetas = [float64([-1.0, -2.2]), float64([-0.45]), float64([-0.45])]
    spec = replace(SELF_PLAY, kl_coeff=kl_coeff)
    found = Trained.of(batch, ObjectiveConfig(loss="published"), spec, thetas).loss.item()
    m, m0, rewards = float64([-1.6, -0.45, -0.45]), float64([-1.75, -0.5, -0.5]), float64([0.4, 0.6, 0.6])
    wanted = published_offline_po_terms(m, m0, rewards, float64([1.5] * 3), float64([0.0] * 3), kl_coeff, 0.5, 0.2)
    assert found == pytest.approx(wanted.sum().item())
    assert wanted[0].item() == pytest.approx(-1.5 * math.exp(0.15) * (0.4 - kl_coeff * 0.15) / 3), "by hand"


@pytest.mark.parametrize("kl_coeff", [0.0, 0.2])
def test_an_imitated_batch_needs_the_starts_log_probabilities_only_for_the_divergence(kl_coeff: float) -> None:
    old = (-1.5, -2.0) if kl_coeff else None
    batch = Batch((GameSample("a", Role.ATTACKER, 1.5, (Sample((1,), (2, 3), 1.0, None, old),)),))
    spec = StageSpec("imitation", 1, 0.0, kl_coeff)
    found = Trained.of(batch, ObjectiveConfig(), spec, [float64([-1.0, -2.2])]).loss.item()
    assert found == pytest.approx(1.5 * (1.6 + kl_coeff * math.exp(-1.6) * 0.15))


@pytest.mark.parametrize(
    ("method", "objective"),
    [
        ("self_play", {}),
        ("self_play", {"length_norm": "constant", "constant_length": 7}),
        ("self_play", {"kl_weighting": "ratio"}),
        ("self_play", {"loss": "published"}),
        ("imitation", {}),
    ],
    ids=["spag", "constant length", "weighted divergence", "published", "imitation"],
)
def test_forced_tokens_are_read_and_nothing_else(method: Any, objective: dict[str, Any]) -> None:
    """Loss, gradient and statistics are those of the same turn without them."""
    generator = torch.Generator().manual_seed(0)
    columns = -torch.rand(4, 6, generator=generator, dtype=torch.float64)
    spec = StageSpec(method, 1, 0.0, kl_coeff=0.3)
    found = []
    for kept in ([0, 1, 2, 3, 4, 5], [0, 1, 4, 5]):
        theta = columns[0, kept].clone().requires_grad_()
        sampler, old, ref = columns[1:, kept].numpy()
        forced = (2, 4) if len(kept) == 6 else None
        turn = Sample([1], [2] * len(kept), 0.7, sampler, old, ref, forced=forced)
        other = Sample([1], [2] * 3, -0.4, [-1.0] * 3, [-1.1] * 3, [-1.2] * 3)
        of_other = float64([-1.0, -2.0, -0.5], requires_grad=True)
        batch = Batch((GameSample("one", Role.ATTACKER, 0.9, (turn, other)),))
        entropies = [float64([1.0, 2.0, 30.0, 40.0, 5.0, 6.0])[kept], float64([1.0, 1.0, 1.0])]
        trained = Trained.of(batch, ObjectiveConfig(**objective), spec, [theta, of_other], entropies)
        sums = {name: value for name, value in trained.sums.items() if not name.endswith("_tokens")}
        found.append((trained.loss, sums, trained.maxima, theta.grad, of_other.grad))
    with_forced, without = found
    assert with_forced[0].item() == pytest.approx(without[0].item(), abs=1e-9)
    assert with_forced[1] == pytest.approx(without[1], abs=1e-7)
    assert with_forced[2] == pytest.approx(without[2], abs=1e-7)
    assert with_forced[3][[0, 1, 4, 5]].tolist() == pytest.approx(without[3].tolist(), abs=1e-9)
    assert with_forced[3][[2, 3]].tolist() == [0.0, 0.0]
    assert with_forced[4].tolist() == pytest.approx(without[4].tolist(), abs=1e-9)


@pytest.mark.parametrize("forced", [(0, 3), (2, 2), (1, 4), (-1, 2)])
def test_forced_tokens_are_some_of_a_turns(forced: tuple[int, int]) -> None:
    with pytest.raises(InputError, match="cannot be the forced ones"):
        Sample([1], [2, 3, 4], forced=forced)
    with pytest.raises(InputError, match="cannot be the forced ones"):
        Turn(Role.ATTACKER, "a", (1,), (2, 3, 4), (0.0, 0.0, 0.0), "p", forced=forced)


def test_a_turns_forced_tokens_are_those_of_its_sample() -> None:
    episode = played_game(1, Outcome.DEFENDER_WINS)
    turns = tuple(replace(turn, forced=(0, 1) if place == 1 else None) for place, turn in enumerate(episode.turns))
    (game,) = game_samples([replace(episode, turns=turns)], ObjectiveConfig(learn_from="both"))
    assert [sample.forced for sample in game.turns] == [None, (0, 1), None, None]

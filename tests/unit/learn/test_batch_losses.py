"""Losses, gradients and statistics of whole batches are those recorded of a loss that was computed turn by turn."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from learners.objectives import MAXIMA
from learners.packing import pack
from learners.step_sums import StepSums
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.errors import LearnerError
from spag_ray.game.rules import Role
from spag_ray.training_data.samples import Claiming, GameSample, Sample
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.training_data.terms import KINDS, TERMS, Rows
from tests.support.losses import Trained

RECORDED = json.loads((Path(__file__).resolve().parents[2] / "golden" / "batch_losses.json").read_text())
NAMES = {"policy", "kl", "sft", "listening", "claiming", "unsaid"}


def sample(text: dict[str, Any]) -> Sample:
    return Sample(
        text["prompt_ids"],
        text["target_ids"],
        text["advantage"],
        text.get("sampler_logprobs"),
        text.get("old_logprobs"),
        text.get("ref_logprobs"),
        Role(text["role"]) if text["role"] else None,
        Claiming(*text["claiming"]) if "claiming" in text else None,
    )


def batch_of(case: dict[str, Any]) -> tuple[Batch, list[dict[str, Any]]]:
    """The batch, and its texts in the order of its samples."""
    games = case["games"]
    texts = [text for game in games for text in game["turns"]]
    texts += [text for game in games for text in game["listening"]]
    texts += [text for game in games for places in game["unsaid"] for text in places] + case["sft"]
    made = tuple(
        GameSample(
            f"game-{number}",
            Role(game["role"]),
            game["weight"],
            tuple(map(sample, game["turns"])),
            tuple(map(sample, game["listening"])),
            tuple(tuple(map(sample, places)) for places in game["unsaid"]),
        )
        for number, game in enumerate(games)
    )
    return Batch(made, tuple(map(sample, case["sft"]))), texts


def train(case: dict[str, Any], parts: Sequence[Sequence[int]] | None = None) -> tuple[Trained, Any]:
    """The batch's loss in one micro-batch, or in several, each of some of its samples in this order."""
    batch, texts = batch_of(case)
    spec = StageSpec(case["method"], 1, 0.0, case["kl_coeff"], case["listening_coeff"])
    thetas = [torch.tensor(text["theta"], dtype=torch.float64, requires_grad=True) for text in texts]
    entropies = [torch.tensor(text["entropy"], dtype=torch.float64) for text in texts]
    objective = ObjectiveConfig(**case["objective"])
    trained = Trained.of(batch, objective, spec, thetas, entropies, case["at_start"], parts)
    return trained, thetas


# Statistics of other names when they were recorded.
SINCE = {name: f"{name}_mean" for name in ("ratio", "mismatch", "gap")}


@pytest.mark.parametrize("in_parts", [False, True])
@pytest.mark.parametrize("case", RECORDED, ids=[case["name"] for case in RECORDED])
def test_a_batch_has_the_recorded_loss_gradient_and_statistics(case: dict[str, Any], in_parts: bool) -> None:
    """In one micro-batch in order, and in micro-batches of three texts in any order."""
    num_texts = len(case["expected"]["gradients"])
    order = np.random.default_rng(0).permutation(num_texts).tolist()
    parts = [order[start : start + 3] for start in range(0, num_texts, 3)]
    trained, thetas = train(case, parts if in_parts else None)
    expected = case["expected"]
    assert trained.loss.item() == pytest.approx(expected["loss"], rel=1e-12, abs=1e-12)
    for theta, gradient in zip(thetas, expected["gradients"], strict=True):
        assert theta.grad.tolist() == pytest.approx(gradient, rel=1e-9, abs=1e-12)
    sums = {name: trained.sums[SINCE.get(name, name)] for name in expected["sums"]}
    assert sums == pytest.approx(expected["sums"], rel=1e-9, abs=1e-12)
    assert trained.maxima == pytest.approx({f"{name}_max": value for name, value in expected["maxima"].items()})


def test_the_recorded_batches_have_every_kind_and_term() -> None:
    kinds = {KINDS[kind] for case in RECORDED for kind in rows_of(case).kinds}
    assert kinds == set(KINDS)
    assert set(TERMS) == NAMES | {"entropy_bonus"}, "the bonus is younger than the records (test_estimators.py)"
    moved = {term for case in RECORDED for term in NAMES if case["expected"]["sums"][term]}
    assert moved == NAMES
    assert set(MAXIMA) == {f"{name}_max" for name in RECORDED[0]["expected"]["maxima"]}


def rows_of(case: dict[str, Any]) -> Rows:
    spec = StageSpec(case["method"], 1, 0.0, case["kl_coeff"], case["listening_coeff"])
    return Rows.of(batch_of(case)[0], ObjectiveConfig(**case["objective"]), spec)


def test_a_turn_without_old_log_probabilities_is_refused_unless_the_weights_are_those_of_the_start() -> None:
    batch = Batch((GameSample("one", Role.ATTACKER, 1.0, (Sample([1], [2, 3]),)),))
    theta = [torch.tensor([-1.0, -2.0], dtype=torch.float64, requires_grad=True)]
    spec = StageSpec("self_play", 1, 0.0, 0.2)
    with pytest.raises(LearnerError, match="without its old log-probabilities"):
        Trained.of(batch, ObjectiveConfig(), spec, theta, theta, at_start=False)
    assert Trained.of(batch, ObjectiveConfig(), spec, theta, theta, at_start=True).loss.item() == -1.0


@pytest.mark.parametrize("bad", [float("nan"), float("-inf"), float("inf")])
def test_a_loss_that_is_not_finite_spoils_every_gradient(bad: float) -> None:
    batch = Batch((), (Sample([1], [2, 3]), Sample([1], [4])))
    thetas = [torch.tensor(values, requires_grad=True) for values in ([bad, -1.0], [-1.0])]
    trained = Trained.of(batch, ObjectiveConfig(), StageSpec("self_play", 1, 0.0, 0.2), thetas, thetas)
    assert not torch.isfinite(trained.loss)
    assert not any(torch.isfinite(theta.grad).any() for theta in thetas)


@pytest.mark.parametrize("unknown", ["old_logprobs", "sampler_logprobs", "ref_logprobs"])
def test_a_loss_that_is_not_finite_where_its_gradient_would_be_zero_spoils_it_too(unknown: str) -> None:
    """Clamping has no gradient where a value is not a number."""
    given: dict[str, Any] = {"old_logprobs": [-1.0, -1.0], unknown: [float("nan")] * 2}
    batch = Batch((GameSample("one", Role.ATTACKER, 1.0, (Sample([1], [2, 3], 1.0, **given),)),))
    thetas = [torch.tensor([-0.5, -0.5], requires_grad=True)]
    trained = Trained.of(batch, ObjectiveConfig(), StageSpec("self_play", 1, 0.0, 0.2), thetas)
    assert not torch.isfinite(trained.loss)
    assert torch.isnan(thetas[0].grad).all()


def test_a_finite_loss_leaves_the_gradients_of_other_texts_alone() -> None:
    """The probability of an unsaid word may be 0."""
    place = Sample([1], [9], role=Role.ATTACKER)
    batch = Batch((GameSample("one", Role.ATTACKER, 1.0, (Sample([1], [2]),), unsaid=((place,),)),))
    thetas = [torch.tensor([value], requires_grad=True) for value in (-1.0, -torch.inf)]
    objective = ObjectiveConfig(unsaid_coeff=1.0)
    trained = Trained.of(batch, objective, StageSpec("self_play", 1, 0.0, 0.2), thetas, thetas, at_start=True)
    assert (trained.loss.item(), thetas[0].grad.tolist(), thetas[1].grad.tolist()) == (-1.0, [-1.0], [0.0])


def test_no_value_is_read_on_the_host_before_the_sums_are() -> None:
    """On the meta device there are no values, so a read raises an error."""
    case = RECORDED[0]
    rows = rows_of(case)
    spec = StageSpec(case["method"], 1, 0.0, case["kl_coeff"], case["listening_coeff"])
    (tree,) = pack(rows.samples, 10_000)
    sums = StepSums(ObjectiveConfig(**case["objective"]), spec)
    theta = torch.zeros(len(tree.targets), device="meta", requires_grad=True)
    sums.loss(theta, theta, rows, tree).backward()
    assert theta.grad is not None
    with pytest.raises((RuntimeError, NotImplementedError), match="meta"):
        sums.read(None)

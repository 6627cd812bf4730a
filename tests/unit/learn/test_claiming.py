"""What teaches the defender to claim as often as it knows the word."""

import math
from dataclasses import replace

import pytest
import torch

from learners.objectives import MIN_ASKED
from spag_ray.config.loading import parse_config
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from spag_ray.game.renderer import Claim
from spag_ray.game.rules import Outcome, Role
from spag_ray.games.taboo.decks import load_deck
from spag_ray.training_data.listened_turns import WhenToClaim, is_for_claiming, listened_turns
from spag_ray.training_data.samples import Claiming, GameSample, Sample
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import Method, StageSpec
from tests.support.episodes import game
from tests.support.losses import Trained
from tests.support.tree_model import check_same_in_a_tree, make_tree_model

torch.set_num_threads(1)


def test_words_for_claiming_teach_the_claims_beginning_and_the_others_the_word() -> None:
    ((position, _),) = listened_turns(
        [game(0, Outcome.TIED)], claim, "all", 100, when=WhenToClaim(0.999, 0.5, 0.25)
    ).values()
    assert position == Sample((1, 2), (7, 8, 9, 10), 1.0, role=Role.DEFENDER, claiming=Claiming(1, 2, 0.5, 0.25))
    ((plain, _),) = listened_turns([game(0, Outcome.TIED)], claim, "all", 100, when=WhenToClaim(1e-6)).values()
    assert plain == Sample((1, 2, 7, 8), (9, 10), 1.0, role=Role.DEFENDER)


def test_without_a_weight_words_for_claiming_teach_nothing() -> None:
    assert listened_turns([game(0, Outcome.TIED)], claim, "all", 100, when=WhenToClaim(0.999, 0.5, 0.0)) == {}


def test_about_the_share_of_the_words_is_for_claiming_and_a_larger_share_keeps_them() -> None:
    words = load_deck("everyday")
    few, more = ({word for word in words if is_for_claiming(word, share)} for share in (0.25, 0.5))
    assert 0.2 < len(few) / len(words) < 0.3
    assert 0.45 < len(more) / len(words) < 0.55
    assert few < more


def claim(word: str) -> Claim:
    return Claim((7, 8), (9, 10), 1)


def at(length: int) -> Sample:
    return Sample(tuple(range(1, length + 1)), (7, 8, 9), 1.0, claiming=Claiming(1, 2))


def trained(batch: Batch, thetas: dict[int, list[float]], method: Method, name: str) -> Trained:
    """A batch whose samples have these log-probabilities, by the length of their prompts."""
    objective = ObjectiveConfig.model_validate({"name": name, "listening_coeff": 0.5, "claiming_coeff": 0.7})
    logprobs = [torch.tensor(thetas[len(sample.prompt_ids)], dtype=torch.float64) for sample in batch.samples]
    return Trained.of(batch, objective, StageSpec(method, 1, 0.0, 0.0, 0.5), logprobs, at_start=True)


def train_claim(deciding: torch.Tensor, between: torch.Tensor, word: torch.Tensor) -> float:
    """The loss of three games with two positions of these log-probabilities each, with a claiming_coeff of 1."""
    theta = torch.cat([deciding, between, word])
    position = Sample((1,), (7,) * len(theta), claiming=Claiming(len(deciding), len(deciding) + len(between)))
    batch = Batch((GameSample("g", None, 1.0, (), (position,) * 2),) * 3)
    objective = ObjectiveConfig(listening_coeff=1.0, claiming_coeff=1.0)
    return Trained.of(batch, objective, StageSpec("self_play", 1, 0.0, 0.0), [theta] * 6).sums["claiming"]


@pytest.mark.parametrize("name", ["spag", "published"])
@pytest.mark.parametrize("method", ["imitation", "self_play"])
def test_the_figure_computed_by_hand_is_added_to_either_objective(name: str, method: Method) -> None:
    """Game A claims with q = 1/8, ends the beginning with e^-1 and knows with p = 1/4; game B has two positions, of A's
    figures and of q = 1/4, e^-3, p = 1/2; game C is of a word that is learned, with 2 nats a token."""
    first = GameSample("a", None, 1.0, (), (at(2),))
    second = GameSample("b", None, 3.0, (), (at(2), at(3)))
    third = GameSample("c", None, 1.0, (), (Sample((1,), (9, 9), 1.0),))
    thetas = {2: [math.log(1 / 8), -1.0, math.log(1 / 4)], 3: [math.log(1 / 4), -3.0, math.log(1 / 2)]}
    found = trained(Batch((first, second, third)), thetas | {1: [-1.0, -3.0]}, method, name)
    a = -math.log(1 / 8) / 4 - math.log(7 / 8) * 3 / 4 + 1
    b = -math.log(1 / 4) / 2 - math.log(3 / 4) / 2 + 3
    assert found.sums["claiming"] == pytest.approx(0.7 * (a + (a + b) / 2) / 3, abs=1e-12)
    assert found.sums["listening"] == pytest.approx(0.5 * 2.0)
    assert found.loss.item() == pytest.approx(found.sums["listening"] + found.sums["claiming"])
    assert found.sums["listened_tokens"] == 2, "words for claiming are not learned"


def test_a_share_of_the_weight_is_that_share_of_the_loss() -> None:
    position = replace(at(2), claiming=Claiming(1, 2, share=0.25))
    thetas = {2: [math.log(1 / 8), -1.0, math.log(1 / 4)]}
    whole, part = (
        trained(Batch((GameSample("a", None, 1.0, (), (each,)),)), thetas, "imitation", "spag").loss.item()
        for each in (at(2), position)
    )
    assert part == pytest.approx(whole / 4, abs=1e-12)
    assert whole > 0


def test_a_word_of_several_tokens_is_as_probable_as_all_of_them_together() -> None:
    """q = 1/8 of two tokens, form = (1 + 3) / 2, p = 1/4 of two tokens."""
    deciding, word = torch.tensor([1 / 4, 1 / 2]).double().log(), torch.tensor([0.5, 0.5]).double().log()
    found = train_claim(deciding, torch.tensor([-1.0, -3.0]).double(), word)
    assert found == pytest.approx(-math.log(1 / 8) / 4 - math.log(7 / 8) * 3 / 4 + 2.0)


@pytest.mark.parametrize("known", [0.05, 0.5, 0.9])
def test_a_claim_comes_to_be_as_probable_as_its_word_which_it_does_not_change(known: float) -> None:
    logit, word = torch.zeros(1, dtype=torch.float64, requires_grad=True), torch.tensor([math.log(known)]).double()
    word.requires_grad_()
    optimizer = torch.optim.SGD([logit], lr=1.0)
    for _ in range(400):
        optimizer.zero_grad()
        train_claim(torch.nn.functional.logsigmoid(logit), word[:0], word)
        optimizer.step()
    assert torch.sigmoid(logit).item() == pytest.approx(known, abs=1e-3)
    assert word.grad.item() == 0.0


def test_a_claim_that_is_all_but_certain_is_unlearned_and_one_that_is_certain_gives_a_finite_loss() -> None:
    word = torch.tensor([math.log(0.05)], dtype=torch.float64)
    logit = torch.tensor([math.log(0.9995 / 0.0005)], dtype=torch.float64, requires_grad=True)
    train_claim(torch.nn.functional.logsigmoid(logit), word[:0], word)
    assert logit.grad.item() == pytest.approx(0.9995 - 0.05, rel=1e-6)
    opening = torch.zeros(2, dtype=torch.float64, requires_grad=True)
    found = train_claim(opening, opening[:0], torch.tensor([math.log(0.25)]))
    assert found == pytest.approx(-0.75 * math.log(MIN_ASKED), rel=1e-5)
    assert torch.isfinite(opening.grad).all()


def test_claims_in_trees_are_as_one_at_a_time() -> None:
    own = Sample(tuple(range(1, 21)), (30, 31, 32), 1.0)
    words = tuple(
        Sample(own.prompt_ids[:cut], (40, 41, 50, 51), 1.0, role=Role.DEFENDER, claiming=Claiming(1, 2, 0.5))
        for cut in (8, 20)
    )
    batch = Batch((GameSample("g", Role.DEFENDER, 1.0, (own,), words),))
    objective = ObjectiveConfig(listening_coeff=0.7, claiming_coeff=0.3)
    check_same_in_a_tree(make_tree_model(), batch, objective, listening_coeff=0.7)


def test_claims_are_imitated_unless_they_are_taught_and_not_taught_without_the_word() -> None:
    def imitates(**objective: float) -> bool:
        return parse_config({"objective": {"listening_coeff": 1.0, **objective}}).imitates_claims

    assert imitates()
    assert not imitates(claiming_coeff=0.5)
    rows = {"objective": {"listening_coeff": 1.0, "claiming_coeff": 1.0}, "imitation": {"listening_coeff": 0.0}}
    assert parse_config(rows).imitates_claims
    with pytest.raises(ConfigError, match="set both"):
        imitates(listening_coeff=0.0, claiming_coeff=1.0)


def test_imitation_may_have_a_weight_of_its_own_for_claiming() -> None:
    objective = {"listening_coeff": 1.0, "claiming_coeff": 0.5}

    def config(own: float | None) -> RunConfig:
        return parse_config({"objective": objective, "imitation": {"claiming_coeff": own}})

    assert [config(own).imitation_claiming for own in (None, 1.0, 0.0)] == [1.0, 2.0, 0.0]
    assert [config(own).imitates_claims for own in (None, 1.0, 0.0)] == [False, False, True]

"""Advantages and losses by the names of the field: figures computed by hand, and those of verl's code."""

import json
import math
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from cluster.planning.plan_checks import check_plan
from learners.step_sums import Figures, step_report
from spag_ray.config.loading import load_config, named_paths, parse_config
from spag_ray.config.no_effect import values_without_effect
from spag_ray.config.objective import ESTIMATORS, ObjectiveConfig
from spag_ray.config.parts import Payoffs
from spag_ray.episodes.episode import Episode
from spag_ray.errors import ConfigError, InputError
from spag_ray.game.rules import EndReason, Outcome, Role
from spag_ray.results.trained_turns import trained_turns
from spag_ray.training_data.estimators import PURE, Trajectory, agreeing, applied, check_advantage, check_estimator, rae
from spag_ray.training_data.game_samples import game_samples
from spag_ray.training_data.imitation import imitation_samples
from spag_ray.training_data.rewards import RoleBaselines
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.shares import Batch
from spag_ray.training_data.stage_spec import StageSpec
from tests.support.episodes import game
from tests.support.losses import Trained

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "estimators.json").read_text())
# Two seats, a group of three and one of one.
GAMES = [
    Trajectory("a", 0, 1.0, (2, 1)),
    Trajectory("a", 0, -1.0, (1,)),
    Trajectory("a", 0, 0.6, (3,)),
    Trajectory("b", 1, 0.5, (1,)),
]


@pytest.mark.parametrize("name", ["rloo", "grpo", "reinforce++"])
def test_advantages_are_those_of_verl(name: str) -> None:
    trajectories = [Trajectory(**each | {"num_tokens": tuple(each["num_tokens"])}) for each in GOLDEN["trajectories"]]
    found = applied(PURE[name], name, trajectories)
    assert [turns[0] for turns in found] == pytest.approx(GOLDEN["advantages"][name], abs=1e-9)
    for turns, trajectory in zip(found, trajectories, strict=True):
        assert turns == [turns[0]] * len(trajectory.num_tokens)


def test_advantages_are_those_computed_by_hand() -> None:
    whole = {name: [turns[0] for turns in applied(PURE[name], name, GAMES)] for name in PURE}
    assert whole["rloo"] == pytest.approx([1 - -0.2, -1 - 0.8, 0.6 - 0, 0.5])
    mean, deviation = 0.2, math.sqrt((0.8**2 + 1.2**2 + 0.4**2) / 2)
    assert whole["grpo"] == pytest.approx([0.8 / deviation, -1.2 / deviation, 0.4 / deviation, 0.5], rel=1e-5)
    # Tokens: 3 of 1.0, 1 of -1.0, 3 of 0.6, 1 of 0.5.
    mean = (3 * 1 - 1 + 3 * 0.6 + 0.5) / 8
    variance = (3 * (1 - mean) ** 2 + (1 + mean) ** 2 + 3 * (0.6 - mean) ** 2 + (0.5 - mean) ** 2) / 7
    assert whole["reinforce++"] == pytest.approx([(paid - mean) / math.sqrt(variance) for paid in (1, -1, 0.6, 0.5)])
    # Turns of the first seat: 1.0 twice, -1.0, 0.6; one of the second.
    mean, deviation = 0.4, math.sqrt((2 * 0.6**2 + 1.4**2 + 0.2**2) / 3)
    assert whole["marshal"] == pytest.approx([0.6 / deviation, -1.4 / deviation, 0.2 / deviation, 0.5], rel=1e-5)
    averages = RoleBaselines(decay=0.9)
    found = applied(rae(averages, [True, True, False, True]), "rae", GAMES)
    assert [turns[0] for turns in found] == pytest.approx([1.0, -1.0 - 0.1, 0.6 - (0.09 - 0.1), 0.5])
    assert averages.values == {Role.ATTACKER: pytest.approx(-0.01), Role.DEFENDER: pytest.approx(0.05)}
    assert [len(turns) for turns in found] == [2, 1, 1, 1]


def played(number: int, scenario: str, outcome: Outcome, num_turns: int = 4, policies: Sequence[str] = "pp") -> Episode:
    found = game(number, outcome, num_turns)
    turns = tuple(replace(turn, policy=policies[place % 2]) for place, turn in enumerate(found.turns))
    return replace(found, scenario=scenario, turns=turns)


def test_reinforce_plus_plus_compares_the_tokens_of_each_policy_that_learns() -> None:
    """The attacker wins nine of ten games; beside the defender's tokens it would be praised for that alone."""
    outcomes = [Outcome.ATTACKER_WINS] * 9 + [Outcome.DEFENDER_WINS]
    objective = ObjectiveConfig(advantage="reinforce++")

    def means(policies: Sequence[str], learning: set[str]) -> list[float]:
        episodes = [played(n, f"w{n}", outcome, 4, policies) for n, outcome in enumerate(outcomes)]
        turns = [turn for each in game_samples(episodes, objective, learning=learning) for turn in each.turns]
        of_roles = [[(turn.advantage, len(turn.target_ids)) for turn in turns if turn.role is role] for role in Role]
        return [sum(a * n for a, n in own) / sum(n for _, n in own) for own in of_roles]

    assert means(("attacker", "defender"), {"attacker", "defender"}) == pytest.approx([0, 0], abs=1e-9)
    attacker, defender = means("pp", {"p"})
    assert attacker > 0.5 > -0.5 > defender
    episodes = [played(n, f"w{n}", outcome, 4, ("attacker", "defender")) for n, outcome in enumerate(outcomes)]
    alone = [
        [turn.advantage for each in game_samples(episodes, objective, learning=names) for turn in each.turns]
        for names in ({"attacker"}, {"attacker", "defender"})
    ]
    assert alone[1][::2] == alone[0], "whether the other learns or not"


ROUND = [
    played(0, "river", Outcome.ATTACKER_WINS),
    played(1, "river", Outcome.DEFENDER_WINS, num_turns=3),
    played(2, "stone", Outcome.ATTACKER_WINS),
    played(3, "stone", Outcome.ATTACKER_WINS, num_turns=2),
    played(4, "bread", Outcome.TIED),
]


def test_every_turn_of_a_seat_that_was_paid_gets_the_seats_advantage_and_no_game_weighs_more() -> None:
    games = game_samples(ROUND, ObjectiveConfig(advantage="rloo"))
    assert [game.episode_id for game in games] == ["s/0", "s/1", "s/2", "s/3"], "nobody was paid for the tie"
    assert {game.weight for game in games} == {1.0}
    assert [[turn.advantage for turn in game.turns] for game in games] == [
        [2.0, -2.0, 2.0, -2.0],
        [-2.0, 2.0, -2.0],
        [0.0] * 4,
        [0.0] * 2,
    ]
    tied = game_samples(ROUND, ObjectiveConfig(advantage="rloo"), Payoffs(tie=(-0.3, None)))
    assert [turn.role for turn in tied[-1].turns] == [Role.ATTACKER] * 2
    assert {turn.advantage for turn in tied[-1].turns} == {-0.3}, "alone with its word"
    against = [replace(each, turns=played(0, "", Outcome.TIED, 4, ("p", "past p")).turns) for each in ROUND[:2]]
    learned = game_samples(against, ObjectiveConfig(advantage="rloo"), learning={"p"})
    assert [[turn.role for turn in game.turns] for game in learned] == [[Role.ATTACKER] * 2] * 2
    assert [game.turns[0].advantage for game in learned] == [2.0, -2.0]


def test_the_moving_averages_of_rae_count_a_game_once() -> None:
    objective, averages = ObjectiveConfig(advantage="rae", baseline_decay=0.5), RoleBaselines(0.5)
    first = game_samples(ROUND[:1], objective, baselines=averages)
    again = game_samples(ROUND[:2], objective, baselines=averages, repeated={0})
    assert {turn.advantage for turn in first[0].turns if turn.role is Role.ATTACKER} == {1.0}
    assert {turn.advantage for turn in again[0].turns if turn.role is Role.ATTACKER} == {0.5}
    assert {turn.advantage for turn in again[1].turns if turn.role is Role.ATTACKER} == {-1.5}
    assert averages.values == {Role.ATTACKER: -0.25, Role.DEFENDER: 0.25}


def test_games_of_a_scenario_that_all_paid_the_same_are_left_out() -> None:
    for objective in (ObjectiveConfig(advantage="grpo", drop_agreeing=True), ObjectiveConfig(drop_agreeing=True)):
        assert [game.episode_id for game in game_samples(ROUND, objective)] == ["s/0", "s/1"]
    assert agreeing(GAMES) == [False] * 4
    assert agreeing([*GAMES[:1] * 2, *GAMES[2:]]) == [False] * 4, "one of three was paid otherwise"
    assert agreeing([*GAMES[:1] * 2, GAMES[3]]) == [True, True, False], "one alone agrees with nobody"


@pytest.mark.parametrize(
    "objective",
    [
        {"learn_from": "both", "role_weights": "none", "baseline": "mean"},
        {"learn_from": "both", "role_weights": "none", "baseline": "mean", "baseline_std": "batch"},
        {},  # winners, with balanced roles
        {"advantage": "marshal"},
        {"advantage": "reinforce++"},
        {"advantage": "rae"},
    ],
)
def test_games_that_are_left_out_count_nowhere_else(objective: dict[str, Any]) -> None:
    won, lost = Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS
    alike = [played(number, "stone", won) for number in range(4)]
    kept = [played(number, "river", outcome) for number, outcome in enumerate((won, won, lost, lost), 4)]
    chosen = ObjectiveConfig.model_validate({"drop_agreeing": True, **objective})
    first, second = (RoleBaselines(0.5) if chosen.has_moving_baseline else None for _ in range(2))
    found = game_samples(alike + kept, chosen, baselines=first)
    assert found == game_samples(kept, chosen, baselines=second)
    assert [each.episode_id for each in found] == [each.episode_id for each in kept]


def test_a_win_whose_winner_is_left_out_balances_no_role() -> None:
    """Its loser, who was paid differently, is not trained with `learn_from: winners`."""
    won, lost = Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS
    alike = [played(number, "stone", won) for number in range(2)]
    alike[0] = replace(alike[0], verdict=replace(alike[0].verdict, end_reason=EndReason.SAID_WORD))
    kept = [played(number, "river", outcome) for number, outcome in enumerate((won, lost), 2)]
    payoffs, objective = Payoffs(wrong_guess=(1, -0.5)), ObjectiveConfig(drop_agreeing=True)
    assert game_samples(alike + kept, objective, payoffs) == game_samples(kept, objective, payoffs)


@pytest.mark.parametrize("baseline", ["mean", "moving", "scenario"])
def test_a_frozen_opponents_results_are_no_baseline_of_the_learner(baseline: str) -> None:
    """The learner wins every game, in both seats."""
    wins = [(Outcome.ATTACKER_WINS, ("p", "past p")), (Outcome.DEFENDER_WINS, ("past p", "p"))] * 2
    games = [played(number, "river", outcome, 4, names) for number, (outcome, names) in enumerate(wins)]
    objective = ObjectiveConfig.model_validate({"learn_from": "both", "role_weights": "none", "baseline": baseline})
    averages = RoleBaselines(0.5) if baseline == "moving" else None
    found = game_samples(games, objective, baselines=averages, learning={"p"})
    if averages is not None:
        assert averages.values == {Role.ATTACKER: 0.75, Role.DEFENDER: 0.75}, "of two games each"
    else:
        assert {turn.advantage for each in found for turn in each.turns} == {0.0}


@pytest.mark.parametrize("name", list(GOLDEN["losses"]))
def test_losses_and_gradients_are_those_of_verl(name: str) -> None:
    golden = GOLDEN["losses"][name]
    keys = ("clip_range", "clip_range_high", "constant_length")
    settings: dict[str, Any] = {key: golden[key] for key in keys if key in golden}
    turns = [Sample((1,), [2] * len(each["old"]), each["advantage"], None, each["old"]) for each in GOLDEN["turns"]]
    # Neither how turns make games nor how games make micro-batches changes a mean over turns or tokens.
    games = [GameSample("a", None, 1.0, tuple(turns[:4])), GameSample("b", None, 1.0, tuple(turns[4:]))]
    for parts in (None, [[0, 3, 8], [1, 2, 4, 5, 6, 7]]):
        thetas = [torch.tensor(each["theta"], dtype=torch.float64, requires_grad=True) for each in GOLDEN["turns"]]
        objective = ObjectiveConfig(loss=name, **settings)
        spec = StageSpec("self_play", 1, 0.0, 0.0)
        found = Trained.of(Batch(tuple(games)), objective, spec, thetas, parts=parts)
        assert found.loss.item() == pytest.approx(golden["loss"], rel=1e-6)
        for theta, gradient in zip(thetas, golden["gradients"], strict=True):
            assert theta.grad is not None
            assert theta.grad.tolist() == pytest.approx(gradient, rel=1e-5, abs=1e-9)


def test_the_divergence_is_averaged_as_the_loss_is() -> None:
    turns = (
        Sample((1,), (2, 3), 0.0, None, (-1.0, -1.0), (-1.0, -2.0)),
        Sample((1,), (2,), 0.0, None, (-1.0,), (-1.5,)),
    )
    thetas = [torch.tensor(each, dtype=torch.float64) for each in ([-1.0, -1.0], [-1.0])]
    first, second = math.exp(-1) - 1 + 1, math.exp(-0.5) - 1 + 0.5
    batch = Batch((GameSample("a", None, 1.0, turns),))

    def divergence(**objective: Any) -> float:
        found = Trained.of(batch, ObjectiveConfig(**objective), StageSpec("self_play", 1, 0.0, 0.7), thetas)
        return found.sums["kl"] / 0.7

    assert divergence(loss="ppo-clip") == pytest.approx((first + second) / 3)
    assert divergence(loss="dr-grpo", constant_length=5) == pytest.approx((first + second) / 5 / 2)
    assert divergence(loss="gspo") == pytest.approx((first / 2 + second) / 2)
    assert divergence() == pytest.approx((first / 2 + second) / 2), "one game"


def test_an_entropy_bonus_is_averaged_as_the_loss_is_and_has_a_gradient() -> None:
    turns = (Sample((1,), (2, 3), 0.0, None, (-1.0, -1.0)), Sample((1,), (2,), 0.0, None, (-1.0,)))
    games = (GameSample("a", None, 0.5, turns), GameSample("b", None, 1.5, turns[:1]))
    thetas = [torch.tensor(each, dtype=torch.float64) for each in ([-1.0, -1.0], [-1.0], [-1.0, -1.0])]
    entropies = [torch.tensor(each, dtype=torch.float64) for each in ([1.0, 2.0], [0.4], [0.6, 0.2])]

    def bonus(**objective: Any) -> float:
        spec, chosen = StageSpec("self_play", 1, 0.0, 0.0), ObjectiveConfig(entropy_coeff=0.1, **objective)
        return Trained.of(Batch(games), chosen, spec, thetas, entropies).sums["entropy_bonus"] / -0.1

    assert bonus() == pytest.approx((0.5 * (1.5 + 0.4) / 2 + 1.5 * 0.4) / 2)
    assert bonus(loss="ppo-clip") == pytest.approx((0.5 * 3.4 + 1.5 * 0.8) / 5)
    assert bonus(loss="dr-grpo", constant_length=4) == pytest.approx((0.5 * 3.4 + 1.5 * 0.8) / 4 / 3)
    assert bonus(loss="gspo") == pytest.approx((0.5 * (1.5 + 0.4) + 1.5 * 0.4) / 3)
    without = Trained.of(Batch(games), ObjectiveConfig(), StageSpec("self_play", 1, 0.0, 0.0), thetas, entropies)
    assert without.sums["entropy_bonus"] == 0
    imitated = ObjectiveConfig(entropy_coeff=0.1)
    assert Trained.of(Batch(games), imitated, StageSpec("imitation", 1, 0.0, 0.0), thetas, entropies).sums[
        "entropy_bonus"
    ] == pytest.approx(0)


def reported(objective: ObjectiveConfig, spec: StageSpec) -> dict[str, Any]:
    """Of four turns: clipped above, clipped below, not clipped because of its advantage's sign, and capped."""
    ratios, advantages = (1.5, 0.5, 0.5, 1.0), (1.0, -1.0, 2.0, 0.0)
    turns = [
        Sample((1,), (2,) * length, advantage, (-1.0 - surplus,) * length, (-1.0,) * length)
        for length, advantage, surplus in zip((1, 1, 2, 4), advantages, (0, 0, 0, 2), strict=True)
    ]
    thetas = [
        torch.full((len(turn.target_ids),), math.log(ratio) - 1, dtype=torch.float64)
        for turn, ratio in zip(turns, ratios, strict=True)
    ]
    batch = Batch((GameSample("a", None, 1.0, tuple(turns)),))
    found = Trained.of(batch, objective, spec, thetas)
    report = step_report(
        Figures(found.sums, found.maxima),
        batch.counts,
        objective,
        spec,
        step=1,
        gradient_norm=1.0,
        learning_rate=0.1,
        seconds=1.0,
    )
    return {name: value for name, value in vars(report).items() if value is not None}


def test_a_step_says_what_its_ratios_and_advantages_were() -> None:
    found = reported(ObjectiveConfig(), StageSpec("self_play", 1, 0.0, 0.0))
    assert found["clip_fraction"] == 0.5
    assert (found["clip_fraction_low"], found["clip_fraction_high"]) == (0.25, 0.25)
    assert found["approx_kl"] == pytest.approx((2 * math.log(2) - math.log(1.5)) / 4)
    assert found["mismatch_capped"] == 0.25, "one of four engine weights is above 2"
    assert (found["advantage_mean"], found["advantage_zeros"]) == (0.5, 0.25)
    assert found["advantage_std"] == pytest.approx(math.sqrt((0.25 + 2.25 + 2.25 + 0.25) / 4))
    assert (found["turn_tokens_mean"], found["turn_tokens_max"]) == (2.0, 4)
    of_turns = reported(ObjectiveConfig(loss="gspo", clip_range=0.2), StageSpec("self_play", 1, 0.0, 0.0))
    assert (of_turns["clip_fraction_low"], of_turns["clip_fraction_high"]) == (0.25, 0.25)
    assert of_turns["mismatch_capped"] == 0.25, "the weight of the fourth turn"


def test_what_does_not_apply_to_a_step_is_left_out_and_never_0() -> None:
    of_ratios = {"kl", "approx_kl", "clip_fraction", "ratio_mean", "ratio_max", "mismatch_mean", "gap_mean", "gap_max"}
    of_advantages = {"advantage_mean", "advantage_std", "advantage_zeros"}
    imitated = reported(ObjectiveConfig(), StageSpec("imitation", 1, 0.0, 0.0))
    assert not (of_ratios | of_advantages) & set(imitated)
    assert imitated["turn_tokens_max"] == 4
    published = reported(ObjectiveConfig(loss="published"), StageSpec("self_play", 1, 0.0, 0.0))
    assert not of_ratios & set(published)
    assert of_advantages <= set(published)
    assert of_ratios | of_advantages <= set(reported(ObjectiveConfig(), StageSpec("self_play", 1, 0.0, 0.0)))


def test_ratios_of_turns_that_an_engine_sampled_are_weighted_once_for_the_turn() -> None:
    turn = Sample((1,), (2, 3), 1.0, (-1.0, -3.0), (-1.2, -1.8))
    theta = torch.tensor([-1.2, -1.8], dtype=torch.float64)
    batch = Batch((GameSample("a", None, 1.0, (turn,)),))
    found = Trained.of(batch, ObjectiveConfig(loss="gspo"), StageSpec("self_play", 1, 0.0, 0.0), [theta])
    assert found.loss.item() == pytest.approx(-math.exp((-0.2 + 1.2) / 2))
    capped = ObjectiveConfig(loss="gspo", mismatch_cap=1.5)
    assert Trained.of(batch, capped, StageSpec("self_play", 1, 0.0, 0.0), [theta]).loss.item() == pytest.approx(-1.5)


def test_upper_and_lower_clips_may_differ_and_gspo_has_those_of_its_paper() -> None:
    assert ObjectiveConfig().clip_ends == (0.8, 1.2)
    assert ObjectiveConfig(clip_range_high=0.28).clip_ends == (0.8, 1.28)
    assert ObjectiveConfig(loss="gspo").clip_ends == (1 - 3e-4, 1 + 4e-4)
    assert ObjectiveConfig(loss="gspo", clip_range=0.1).clip_ends == (0.9, 1.1)
    chosen = ObjectiveConfig(advantage="rae")
    assert (chosen.learn_from, chosen.role_weights) == ("both", "none")


@pytest.mark.parametrize(
    ("objective", "told"),
    [
        ({"advantage": "rlo"}, "advantage: rlo is not known; there are spag, rae, rloo, grpo"),
        ({"advantage": "rlo"}, "did you mean `rloo`?"),
        ({"advantage": "grpo", "loss": "published"}, "advantage: grpo is not for the loss `published`"),
        ({"advantage": "grpo", "baseline": "mean"}, "baseline: mean is for advantage: spag"),
        ({"advantage": "rae", "decay": 0.5}, "decay: 0.5 is for advantage: spag"),
        ({"advantage": "rae", "learn_from": "winners"}, "learn_from: winners is for advantage: spag"),
        ({"advantage": "rae", "role_weights": "balanced"}, "set none"),
        ({"loss": "dr-grpo"}, "divides by constant_length"),
        (
            {"loss": "gspo", "length_norm": "constant", "constant_length": 9},
            "length_norm: constant is not for the loss",
        ),
        ({"loss": "published", "entropy_coeff": 0.1}, "entropy_coeff is not for the loss `published`"),
        ({"loss": "published", "clip_range_high": 0.3}, "clip_range_high is not for the loss `published`"),
        ({"loss": "gspo", "name": "spag"}, "objective.name is the former name of objective.loss; leave it out"),
        ({"advantage": ":mine"}, "advantage: :mine is not known"),
        ({"loss": "grpo"}, "should be 'spag', 'published', 'ppo-clip', 'dr-grpo' or 'gspo'"),
    ],
)
def test_combinations_without_meaning_are_refused(objective: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match="objective") as refused:
        parse_config({"objective": objective})
    assert told in str(refused.value)


def test_the_former_name_of_the_loss_is_read() -> None:
    assert parse_config({"objective": {"name": "published"}}).objective.loss == "published"
    before = parse_config({"preset": "published"}).model_dump(mode="json", exclude_none=True)
    before["objective"] = {("name" if key == "loss" else key): value for key, value in before["objective"].items()}
    assert parse_config(before).objective.loss == "published", "as config.yaml of a run had it"
    chosen = parse_config({"preset": "published", "objective": {"name": "spag"}, "sampling": {"top_k": None}})
    assert chosen.objective.loss == "spag"


def test_clips_that_were_set_for_another_loss_are_warned_of() -> None:
    def told(**objective: Any) -> list[str]:
        return [each for each in values_without_effect(parse_config({"objective": objective})) if "clips" in each]

    assert told() == told(loss="gspo") == told(loss="ppo-clip", clip_range_high=0.28) == []
    (of_turns,) = told(loss="gspo", clip_range=0.2)
    assert of_turns.startswith("objective.loss: gspo clips ratios of turns, which are close to 1, at 0.8 and 1.2; set")
    assert told(loss="published", clip_range=0.005) == []
    (of_tokens,) = told(loss="ppo-clip", clip_range=3e-4)
    assert "at 0.9997 and 1.0003; set clip_range and clip_range_high to 0.2" in of_tokens


@pytest.mark.parametrize("name", ESTIMATORS)
def test_imitation_and_ties_are_as_without_an_estimator(name: str) -> None:
    """Imitation has no advantages: the loser's turns would be made likelier."""
    usual = imitation_samples(ROUND, ObjectiveConfig(), "winners")
    assert imitation_samples(ROUND, ObjectiveConfig(advantage=name, drop_agreeing=True), "winners") == usual
    if name != "spag":
        parse_config({"objective": {"advantage": name}, "game": {"payoffs": {"tie": [0, 0]}}})


def test_what_a_log_says_of_turns_that_an_estimator_or_dropped_groups_decide() -> None:
    of_estimator = parse_config({"objective": {"advantage": "rloo"}})
    config = parse_config({"objective": {"drop_agreeing": True}})
    episode = replace(ROUND[0], turns=tuple(replace(turn, policy="policy") for turn in ROUND[0].turns))
    assert trained_turns("spag-1", episode, of_estimator) == {0: 1.0, 1: -1.0, 2: 1.0, 3: -1.0}, "what the game paid"
    assert trained_turns("spag-1", episode, config) == {}, "the games of the round decide"


def test_groups_of_one_are_warned_of() -> None:
    config = parse_config({"objective": {"advantage": "grpo"}, "self_play": {"games_per_round": 12}})
    (told,) = [each for each in values_without_effect(config, {"taboo": 20}) if "advantage" in each]
    assert told.startswith("objective.advantage: grpo has nothing to compare a game with, because the 12 games")


OWN = """
from statistics import fmean

def centred(trajectories):
    mean = fmean(each.payoff for each in trajectories) if trajectories else 0.0
    return [[each.payoff - mean] * len(each.num_tokens) for each in trajectories]

def short(trajectories):
    return [[each.payoff] for each in trajectories]

def few(trajectories):
    return [[0.0] * len(each.num_tokens) for each in trajectories[1:]]

def breaks(trajectories):
    return [[1 / len(each.num_tokens[1:])] * len(each.num_tokens) for each in trajectories]

def nan(trajectories):
    return [[float("nan")] * len(each.num_tokens) for each in trajectories]

calls = []
def counts(trajectories):
    calls.append(1)
    return [[float(len(calls))] * len(each.num_tokens) for each in trajectories]
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OWN)
    return "mine.py"


def test_a_function_of_the_users_own_is_an_estimator(own: str) -> None:
    config = parse_config({"objective": {"advantage": f"{own}:centred"}, "sampling": {"max_new_tokens": 32}})
    check_advantage(config.objective)
    assert named_paths(config)["objective.advantage"] == "mine.py"
    check_plan(config)
    games = game_samples(ROUND[1:4], config.objective)
    assert [turn.advantage for turn in games[0].turns] == [-1.0, 1.0, -1.0]
    assert [turn.advantage for turn in games[1].turns] == [1.0, -1.0, 1.0, -1.0]


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("short", "gave 1 advantages for the 2 turns of trajectory 0 (tried with 7 trajectories)"),
        ("few", "gave advantages of 6 trajectories for 7"),
        ("breaks", "ZeroDivisionError: division by zero"),
        ("nan", "they are not all finite"),
        ("counts", "gave other advantages for the same games the second time"),
        ("centered", "mine.py has no centered; did you mean `centred`?"),
        ("calls", "mine.py:calls is not a function"),
    ],
)
def test_a_function_that_is_no_estimator_is_refused_before_the_run(own: str, function: str, told: str) -> None:
    with pytest.raises(ConfigError, match=r"objective\.advantage") as refused:
        check_plan(parse_config({"objective": {"advantage": f"{own}:{function}"}}))
    assert told in str(refused.value)


def test_a_function_in_a_file_that_is_elsewhere_is_told_as_not_checked(tmp_path: Path) -> None:
    unread = check_plan(parse_config({"objective": {"advantage": "no_module:x"}, "sampling": {"max_new_tokens": 32}}))
    assert "objective.advantage no_module:x" in unread
    objective = ObjectiveConfig(advantage=str(tmp_path / "gone.py") + ":mine")
    with pytest.raises(ConfigError, match="there is no file"):
        check_advantage(objective)


def test_shipped_estimators_pass_the_check_and_empty_batches_are_empty() -> None:
    assert set(PURE) | {"spag", "rae"} == set(ESTIMATORS)
    for name, estimator in PURE.items():
        check_estimator(estimator, name)
        assert applied(estimator, name, []) == []
    with pytest.raises(InputError, match="gave advantages of 0 trajectories for 4"):
        applied(lambda _: [], "mine", GAMES)


def test_what_another_estimator_does_not_take_is_told_at_once_with_how_to_take_it_back() -> None:
    """Of a configuration that is named, values can be set and not left out."""
    with pytest.raises(ConfigError) as told:
        load_config("kuhn", ["objective.advantage=rae"])
    assert "decay: 1.0, baseline: scenario are for advantage: spag" in str(told.value)
    (back,) = re.findall(r"or set (.*)$", str(told.value))
    set_back = [f"objective.{each.replace(': ', '=')}" for each in back.split(", ")]
    assert load_config("kuhn", ["objective.advantage=rae", *set_back]).objective.advantage == "rae"

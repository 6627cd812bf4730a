"""What hints told a frozen listener becomes part of the advantages of turns."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from spag_ray.config.loading import parse_config
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import Payoffs
from spag_ray.episodes.episode import Episode
from spag_ray.game.game_form import out_of_room
from spag_ray.game.rules import EndReason, Outcome, Role
from spag_ray.game.turn import Turn
from spag_ray.results.trained_turns import trained_turns
from spag_ray.training_data.game_samples import game_samples
from spag_ray.training_data.imitation import imitation_samples
from spag_ray.training_data.information_gain import gains, is_scored
from spag_ray.training_data.samples import GameSample
from tests.support.episodes import game

KNOWN = (0.05, 0.1, 0.3, 0.25)  # after the rules, then after each of three hints: gains 0.05, 0.2, -0.05


def heard(number: int, known: Sequence[float] = KNOWN, outcome: Outcome = Outcome.TIED, **verdict: Any) -> Episode:
    """A game of len(known) - 1 turns of each seat: hint, reply, hint, ..."""
    found = game(number, outcome, num_turns=2 * len(known) - 2)
    at = dict(zip([0, *range(1, found.num_turns, 2)], known, strict=True))
    turns = tuple(
        replace(turn, listener_logprob=math.log(at[place])) if place in at else turn
        for place, turn in enumerate(found.turns)
    )
    return replace(found, turns=turns, verdict=replace(found.verdict, **verdict))


def advantages(sample: GameSample) -> list[float]:
    return [round(turn.advantage, 4) for turn in sample.turns]


def test_a_hint_and_the_question_before_it_get_its_gain_and_a_claim_gets_none() -> None:
    assert [round(gain.value, 4) for gain in gains(heard(0))] == [0.05, 0.2, -0.05]
    (sample,) = game_samples([heard(0)], ObjectiveConfig(information_gain=2.0))
    assert sample.role is None
    assert sample.weight == 1.0, "a tie that pays nobody is trained by its gains alone"
    assert [turn.role for turn in sample.turns] == [Role.ATTACKER, Role.DEFENDER] * 2 + [Role.ATTACKER]
    assert advantages(sample) == [0.1, 0.4, 0.4, -0.1, -0.1], "hint 1, question 1, hint 2, question 2, hint 3"


def test_a_game_that_no_role_is_balanced_by_has_weight_1() -> None:
    """The attacker's wins pay nothing, so roles are balanced by the defender's alone."""
    payoffs = Payoffs(trap=(None, None), wrong_guess=(None, None))
    games = [heard(0, outcome=Outcome.ATTACKER_WINS), heard(1, outcome=Outcome.DEFENDER_WINS), heard(2)]
    samples = game_samples(games, ObjectiveConfig(information_gain=1.0), payoffs)
    assert [sample.weight for sample in samples] == [1.0, 0.5, 1.0]


def test_gains_are_added_to_what_the_outcome_gives_each_turn() -> None:
    won, objective = heard(0, outcome=Outcome.ATTACKER_WINS), ObjectiveConfig(information_gain=1.0, learn_from="both")
    plain = [turn.advantage for turn in game_samples([won], replace_gain(objective, 0.0))[0].turns]
    (sample,) = game_samples([won], objective)
    added = [turn.advantage - before for turn, before in zip(sample.turns, plain, strict=True)]
    assert added == pytest.approx([0.05, 0.2, 0.2, -0.05, -0.05, 0.0])
    assert sample.turns[0].advantage == pytest.approx(1 / (1 + 0.8**-1 + 0.8**-2) + 0.05)
    (of_winner,) = game_samples([won], ObjectiveConfig(information_gain=1.0))
    assert [turn.role for turn in of_winner.turns] == [Role.ATTACKER, Role.DEFENDER] * 2 + [Role.ATTACKER]
    assert [turn.advantage for turn in of_winner.turns[1::2]] == pytest.approx([0.2, -0.05]), "the loser's: gains alone"


def replace_gain(objective: ObjectiveConfig, information_gain: float) -> ObjectiveConfig:
    return objective.model_copy(update={"information_gain": information_gain})


def test_gains_are_clipped_on_both_sides() -> None:
    (sample,) = game_samples([heard(0, (0.1, 0.9, 0.2, 0.25))], ObjectiveConfig(information_gain=1.0, gain_clip=0.25))
    assert advantages(sample) == [0.25, -0.25, -0.25, 0.05, 0.05]


def test_hints_may_be_paid_for_nats() -> None:
    objective = ObjectiveConfig(information_gain=1.0, gain_of="nats", gain_clip=1.0, gain_seats="attacker")
    (sample,) = game_samples([heard(0)], objective)
    assert advantages(sample) == [round(math.log(2), 4), 1.0, round(math.log(0.25 / 0.3), 4)], "log 3 is clipped"
    assert ObjectiveConfig(gain_of="nats").gain_clip == 3.0
    config = parse_config({"model": "m", "objective": objective.model_dump(exclude_unset=True)})
    turns = tuple(replace(turn, policy="policy") for turn in heard(0).turns)
    shown = trained_turns("spag-1", replace(heard(0), turns=turns), config)
    assert shown[2] == 1.0, "in the report and in rows for export, too"


@pytest.mark.parametrize("changes", [{"baseline": "scenario"}, {"advantage": "rloo"}, {"advantage": "grpo"}])
def test_hints_about_one_scenario_are_compared_with_each_other(changes: dict[str, Any]) -> None:
    """An easy word, whose hints all tell much, pays no more than a hard one."""
    easy = [replace(heard(number, (0.1, told)), scenario="easy") for number, told in enumerate((0.5, 0.7))]
    hard = [replace(heard(number, (0.0001, told)), scenario="hard") for number, told in enumerate((0.1001, 0.0001), 2)]
    once = replace(heard(4, (0.1, 0.6)), scenario="once")
    found = game_samples([*easy, *hard, once], ObjectiveConfig(information_gain=1.0, gain_clip=1.0, **changes))
    own = [sample.turns[0].advantage for sample in found]
    assert own == pytest.approx([-0.1, 0.1, 0.05, -0.05, 0.5 - (0.4 + 0.6 + 0.1 + 0.0 + 0.5) / 5])


def test_a_hint_that_no_other_game_of_its_word_came_to_has_no_gain() -> None:
    """Of a word that is mostly found at once: it would be compared with hints at other words."""
    easy = [replace(heard(0, (0.1, 0.5, 0.9)), scenario="easy"), replace(heard(1, (0.1, 0.7)), scenario="easy")]
    hard = [replace(heard(number, (0.1, 0.1, 0.1)), scenario="hard") for number in (2, 3)]
    objective = ObjectiveConfig(information_gain=1.0, gain_seats="attacker", baseline="scenario")
    assert advantages(game_samples([*easy, *hard], objective)[0]) == [-0.05, 0.0]


def test_only_hints_are_paid_where_only_the_attacker_is() -> None:
    (sample,) = game_samples([heard(0)], ObjectiveConfig(information_gain=1.0, gain_seats="attacker"))
    assert {turn.role for turn in sample.turns} == {Role.ATTACKER}
    assert advantages(sample) == [0.05, 0.2, -0.05]


def test_a_trap_pays_the_attacker_alone_where_nobody_said_who() -> None:
    assert ObjectiveConfig(information_gain=1.0, gain_event="reply").gain_seats == "attacker"
    assert ObjectiveConfig(information_gain=1.0).gain_seats == "both"


def test_below_0_attackers_are_paid_for_what_their_hints_keep_back() -> None:
    (sample,) = game_samples([heard(0)], ObjectiveConfig(information_gain=-2.0))
    assert {turn.role for turn in sample.turns} == {Role.ATTACKER}
    assert advantages(sample) == [-0.1, -0.4, 0.1]


def test_with_a_baseline_the_mean_gain_of_a_turn_and_seat_is_subtracted() -> None:
    games = [heard(0), heard(1, (0.05, 0.25, 0.3)), heard(2, (0.05,) * 2)]
    first, second, third = game_samples(games, ObjectiveConfig(information_gain=1.0, baseline="mean"))
    # Hint 1 of the three games: 0.05, 0.2, 0; mean 0.25 / 3. Question 1 and hint 2 of the first two: 0.2, 0.05.
    mean = 0.25 / 3
    assert [turn.advantage for turn in first.turns] == pytest.approx([0.05 - mean, 0.075, 0.075, 0.0, 0.0])
    assert [turn.advantage for turn in second.turns] == pytest.approx([0.2 - mean, -0.075, -0.075])
    assert [turn.advantage for turn in third.turns] == pytest.approx([-mean])


def test_the_baseline_is_of_trained_turns_and_scored_games() -> None:
    unscored = game(1, Outcome.TIED, num_turns=6)
    guest = heard(2, (0.05, 0.95))
    guest = replace(guest, turns=tuple(replace(turn, policy="guest") for turn in guest.turns))
    objective = ObjectiveConfig(information_gain=1.0, baseline="mean")
    learning = {turn.policy for turn in unscored.turns}
    (sample,) = game_samples([heard(0), unscored, guest], objective, learning=learning)
    assert sample.episode_id == heard(0).episode_id
    assert advantages(sample) == [0.0] * 5, "compared with itself alone"


def test_only_the_learners_turns_are_trained_by_gains() -> None:
    turns = tuple(replace(turn, policy="past") if turn.role is Role.DEFENDER else turn for turn in heard(0).turns)
    (sample,) = game_samples(
        [replace(heard(0), turns=turns)], ObjectiveConfig(information_gain=1.0), learning={turns[0].policy}
    )
    assert [turn.role for turn in sample.turns] == [Role.ATTACKER] * 3


def test_a_game_that_was_not_scored_has_no_gains_and_keeps_its_outcome() -> None:
    won = game(0, Outcome.ATTACKER_WINS, num_turns=6)
    assert not is_scored(won)
    assert game_samples([won], ObjectiveConfig(information_gain=1.0)) == game_samples([won], ObjectiveConfig())
    # A record in which the first turn has no score was not written by an arena: nothing is guessed from the rest.
    turns = (replace(heard(0).turns[0], listener_logprob=None), *heard(0).turns[1:])
    assert gains(replace(heard(0), turns=turns)) == []


@pytest.mark.parametrize(
    "changes", [{}, {"baseline": "mean"}, {"learn_from": "both"}, {"advantage": "grpo"}, {"loss": "published"}]
)
def test_without_a_weight_scored_games_are_trained_on_exactly_as_others(changes: dict[str, Any]) -> None:
    outcomes = (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS, Outcome.TIED)
    scored = [heard(number, outcome=outcome) for number, outcome in enumerate(outcomes)]
    plain = [game(number, outcome, num_turns=6) for number, outcome in enumerate(outcomes)]
    objective = ObjectiveConfig(**changes, gain_clip=0.1, gain_seats="attacker")
    found = game_samples(scored, objective)
    assert found
    assert found == game_samples(plain, objective)


def test_an_estimator_by_name_gets_gains_less_their_mean() -> None:
    games = [heard(0, outcome=Outcome.ATTACKER_WINS), heard(1, (0.05, 0.25, 0.3, 0.3), Outcome.ATTACKER_WINS)]
    plain = game_samples(games, ObjectiveConfig(advantage="rloo"))
    found = game_samples(games, ObjectiveConfig(advantage="rloo", information_gain=1.0))
    added = [
        [turn.advantage - before.advantage for turn, before in zip(one.turns, other.turns, strict=True)]
        for one, other in zip(found, plain, strict=True)
    ]
    assert added[0] == pytest.approx([-0.075, 0.075, 0.075, -0.025, -0.025, 0.0])
    assert added[1] == pytest.approx([0.075, -0.075, -0.075, 0.025, 0.025, 0.0])


def test_turns_that_agree_and_are_left_out_may_still_be_trained_by_their_gains() -> None:
    games = [heard(number, outcome=Outcome.ATTACKER_WINS) for number in range(2)]
    objective = ObjectiveConfig(advantage="grpo", drop_agreeing=True)
    assert game_samples(games, objective) == []
    assert len(game_samples(games, replace_gain(objective, 1.0))) == 2


def test_a_game_that_a_full_context_ended_is_not_trained_on() -> None:
    full = replace(heard(0), verdict=out_of_room(Role.ATTACKER, 6))
    assert game_samples([full], ObjectiveConfig(information_gain=1.0)) == []


def test_a_hint_that_broke_the_rules_was_heard_by_nobody() -> None:
    broken = heard(0, outcome=Outcome.ATTACKER_BREACH, length=5, turn=4, end_reason=EndReason.OTHER)
    broken = replace(broken, turns=broken.turns[:5])
    (sample,) = game_samples([broken], ObjectiveConfig(information_gain=1.0))
    assert advantages(sample) == [0.05, 0.2, 0.2]
    penalised = Payoffs(attacker_breach=(-0.5, None))
    assert advantages(game_samples([broken], ObjectiveConfig(information_gain=1.0), penalised)[0])[-1] == -0.5


def test_a_seat_that_guesses_and_opens_asks_for_the_first_hint_too() -> None:
    """Questions of seat 0, answers of seat 1; before the first question it has read the rules alone."""
    known = {0: 0.1, 2: 0.4, 4: 0.3}
    turns = tuple(
        Turn(Role.DEFENDER if n % 2 else Role.ATTACKER, "x", (1,), (2, 3), (-0.5, -0.5), "p",
             listener_logprob=math.log(known[n]) if n in known else None)
        for n in range(5)
    )  # fmt: skip
    questions = replace(heard(0), game="mine:Questions", turns=turns)
    questions = replace(questions, verdict=replace(questions.verdict, length=5))
    (sample,) = game_samples([questions], ObjectiveConfig(information_gain=1.0))
    assert advantages(sample) == [0.3, 0.3, -0.1, -0.1]
    (hints,) = game_samples([questions], ObjectiveConfig(information_gain=1.0, gain_seats="attacker"))
    assert [turn.role for turn in hints.turns] == [Role.DEFENDER] * 2, "the seat that gives hints, whatever its name"


def test_imitation_has_no_gains() -> None:
    won = heard(0, outcome=Outcome.ATTACKER_WINS)
    for sides in ("winners", "both"):
        found = imitation_samples([won], ObjectiveConfig(information_gain=1.0), sides)
        assert found == imitation_samples([won], ObjectiveConfig(), sides)


def test_a_turn_that_gains_alone_train_is_shown_as_trained() -> None:
    config = parse_config({"objective": {"information_gain": 2.0}})
    turns = tuple(replace(turn, policy="policy") for turn in heard(0).turns)
    shown = trained_turns("spag-1", replace(heard(0), turns=turns), config)
    assert shown == pytest.approx({0: 0.1, 1: 0.4, 2: 0.4, 3: -0.1, 4: -0.1})

"""What is trained on from which games: winners, losers, breaches, baselines, one seat's share."""

import math
from dataclasses import replace
from typing import Any

import pytest

from spag_ray.config.loading import parse_config
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import Payoffs
from spag_ray.episodes.episode import Episode
from spag_ray.errors import ConfigError, InputError
from spag_ray.game.game_form import out_of_room
from spag_ray.game.rules import Outcome, Role
from spag_ray.training_data.game_samples import game_samples, spreads
from spag_ray.training_data.rewards import RoleBaselines, RoleWindow, role_weights
from spag_ray.training_data.samples import GameSample, Sample, turns_of
from tests.support.episodes import game

WON = [game(0, Outcome.ATTACKER_WINS), game(1, Outcome.DEFENDER_WINS), game(2, Outcome.ATTACKER_WINS)]


def test_losers_get_minus_their_share_when_both_are_learned_from() -> None:
    (sample, *_) = game_samples(WON, ObjectiveConfig(learn_from="both"))
    assert [turn.role for turn in sample.turns] == [Role.ATTACKER, Role.DEFENDER] * 2
    assert [round(turn.advantage, 4) for turn in sample.turns] == [0.4444, -0.4444, 0.5556, -0.5556]
    halves = Payoffs(wrong_guess=(1, -0.5), right_guess=(-0.5, 1))
    (halved, *_) = game_samples(WON, ObjectiveConfig(learn_from="both"), halves)
    assert [round(turn.advantage, 4) for turn in halved.turns] == [0.4444, -0.2222, 0.5556, -0.2778]


def test_a_breach_is_left_out_or_pushes_down_the_offending_turn_alone() -> None:
    games = [*WON, game(3, Outcome.DEFENDER_BREACH, decided_by=3), game(4, Outcome.TIED)]
    assert len(game_samples(games, ObjectiveConfig())) == 3
    penalised = game_samples(games, ObjectiveConfig(), Payoffs(defender_breach=(None, -0.3)))
    assert len(penalised) == 4
    assert penalised[-1].role is None, "no role's weight"
    assert penalised[-1].weight == 1.0
    assert [turn.advantage for turn in penalised[-1].turns] == [-0.3]


def against(frozen: Role, number: int, outcome: Outcome, num_turns: int = 4, decided_by: int | None = None) -> Episode:
    """A game of p against a frozen opponent in this seat."""
    played = game(number, outcome, num_turns, decided_by)
    turns = [replace(turn, policy="frozen") if turn.role is frozen else turn for turn in played.turns]
    return replace(played, turns=tuple(turns))


@pytest.mark.parametrize("baseline", ["mean", "scenario"])
def test_the_learners_defeats_by_a_frozen_opponent_are_in_its_baseline_where_winners_are_learned(baseline: Any) -> None:
    """Else the mean is that of its wins, and every advantage is 0."""
    won, lost = Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS
    games = [against(Role.DEFENDER, number, won if number == 0 else lost) for number in range(4)]
    [only] = game_samples(games, ObjectiveConfig(baseline=baseline), learning={"p"})
    assert [round(turn.advantage, 3) for turn in only.turns] == [0.667, 0.833], "1.5 above -0.5, in two shares"
    moving = RoleBaselines(decay=0.5)
    game_samples(games, ObjectiveConfig(baseline="moving"), baselines=moving, learning={"p"})
    assert moving.values[Role.ATTACKER] == pytest.approx(-0.8125), "a win, then three defeats"


def test_games_without_a_trained_turn_have_no_part_in_the_balance_of_roles() -> None:
    """An attacker that a right guess beat has no deciding turn."""
    won, lost = Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS
    guesses = [against(Role.DEFENDER, number, lost, decided_by=3) for number in range(2, 20)]
    games = [against(Role.DEFENDER, 0, won, decided_by=1), against(Role.DEFENDER, 1, won, decided_by=1), *guesses]
    own = [against(Role.ATTACKER, number, lost, decided_by=3) for number in range(20, 22)]
    objective = ObjectiveConfig(learn_from="both", loser_turns="deciding")
    found = game_samples([*games, *own], objective, learning={"p"})
    assert [sample.weight for sample in found] == [1.0] * 4


def test_a_frozen_seat_that_never_spoke_is_not_in_the_learners_baseline() -> None:
    first = [against(Role.DEFENDER, number, Outcome.ATTACKER_WINS, num_turns=1) for number in range(2)]
    own = [against(Role.ATTACKER, number, Outcome.DEFENDER_WINS) for number in range(2, 4)]
    found = game_samples([*first, *own], ObjectiveConfig(learn_from="both", baseline="mean"), learning={"p"})
    assert {turn.advantage for sample in found for turn in sample.turns} == {0.0}


def test_a_breach_has_no_baseline_enters_none_and_weighs_one_as_a_tie_does() -> None:
    breaches = [game(3, Outcome.DEFENDER_BREACH, 4, 3), game(4, Outcome.ATTACKER_BREACH, 3, 2)]
    payoffs = Payoffs(attacker_breach=(-0.5, 0), defender_breach=(0, -0.3), tie=(-0.1, -0.1))
    baselines, plain = RoleBaselines(decay=0.5), RoleBaselines(decay=0.5)
    for each in (baselines, plain):
        each.values = {Role.ATTACKER: 0.25, Role.DEFENDER: 0.125}
    objective = ObjectiveConfig(learn_from="both", baseline="moving")
    games = game_samples([*breaches, *WON, game(5, Outcome.TIED)], objective, payoffs, baselines)
    without = game_samples([*WON, game(5, Outcome.TIED)], objective, payoffs, plain)
    assert baselines.values == plain.values
    assert games[2:] == without
    assert [sample.turns[-1].advantage for sample in games[:2]] == [-0.3, -0.5]
    assert [sample.weight for sample in games] == [1.0, 1.0, 0.75, 1.5, 0.75, 1.0]


def test_the_weight_of_a_role_has_its_cap_in_a_stream_too() -> None:
    window = RoleWindow(20, "a" * 19)
    (rare,) = game_samples([WON[1]], ObjectiveConfig(role_weight_cap=3.0), window=window)
    assert rare.weight == 3.0


def test_a_batch_of_a_stream_is_weighed_by_the_games_before_it() -> None:
    window = RoleWindow(8)
    assert {game.weight for game in game_samples(WON, ObjectiveConfig(), window=window)} == {0.75, 1.5}
    (late,) = game_samples([WON[1]], ObjectiveConfig(), window=window)
    assert late.role is Role.DEFENDER, "its seat has won two of four; of its batch alone, 0.5"
    assert late.weight == 1.0, "its seat has won two of four; of its batch alone, 0.5"


def test_a_game_that_was_trained_on_before_is_not_counted_again() -> None:
    window, baselines = RoleWindow(8), RoleBaselines(0.5)
    objective = ObjectiveConfig(baseline="moving")
    first = game_samples(WON, objective, baselines=baselines, window=window)
    text, values = window.winners, dict(baselines.values)
    again = game_samples(WON, objective, baselines=baselines, window=window, repeated={each.number for each in WON})
    assert (window.winners, baselines.values) == (text, values)
    assert [each.weight for each in again] == [each.weight for each in first]


def test_a_repeated_win_that_the_window_has_forgotten_keeps_a_weight() -> None:
    window = RoleWindow(2, "aa")
    weights = window.weights([Role.ATTACKER, Role.DEFENDER], is_new=[True, False])
    assert window.winners == "aa"
    assert weights == role_weights(num_attacker_wins=2, num_defender_wins=1)


def test_one_win_among_many_weighs_four_unless_the_objective_is_published() -> None:
    games = [*([WON[0]] * 19), WON[1]]
    for objective, heaviest in ((ObjectiveConfig(), 4.0), (ObjectiveConfig(loss="published"), 10.0)):
        assert max(game.weight for game in game_samples(games, objective)) == heaviest
    assert ObjectiveConfig(loss="published", role_weight_cap=3.0).role_weight_cap == 3.0
    assert parse_config({"preset": "published"}).objective.role_weight_cap is None


def test_a_moving_average_moves_by_what_its_decay_leaves() -> None:
    for baselines, decay in ((RoleBaselines(0.75), 0.75), (RoleBaselines(), ObjectiveConfig().baseline_decay)):
        baselines.update([{Role.ATTACKER: 1.0, Role.DEFENDER: None}])
        assert baselines.values == {Role.ATTACKER: pytest.approx(1 - decay), Role.DEFENDER: 0.0}


def test_a_moving_baseline_is_what_the_role_scored_before_this_set_of_games() -> None:
    baselines = RoleBaselines(decay=0.5)
    first = game_samples(WON, ObjectiveConfig(), baselines=baselines)
    assert sum(turn.advantage for turn in first[0].turns) == pytest.approx(1.0)
    # attacker: +1, -1, +1 from 0 with decay 0.5
    assert baselines.values[Role.ATTACKER] == pytest.approx(0.375)
    assert baselines.values[Role.DEFENDER] == pytest.approx(-0.375)
    second = game_samples(WON, ObjectiveConfig(), baselines=baselines)
    assert sum(turn.advantage for turn in second[0].turns) == pytest.approx(1 - 0.375)
    assert sum(turn.advantage for turn in second[1].turns) == pytest.approx(1 + 0.375)


def test_a_seat_of_its_own_learns_its_turns_of_all_games_with_equal_weight() -> None:
    games = game_samples(WON, ObjectiveConfig(learn_from="both"))
    own = turns_of(games, Role.DEFENDER)
    assert [sample.episode_id for sample in own] == ["s/0", "s/1", "s/2"]
    assert {sample.weight for sample in own} == {1.0}
    assert all(turn.role is Role.DEFENDER for sample in own for turn in sample.turns)
    assert [sum(turn.advantage for turn in sample.turns) > 0 for sample in own] == [False, True, False]
    instruction = GameSample("sft-0", Role.ATTACKER, 1.0, (Sample((1,), (2,), 1.0),))
    assert turns_of([instruction], Role.DEFENDER) == [instruction]
    only_winners = turns_of(game_samples(WON, ObjectiveConfig()), Role.DEFENDER)
    assert [sample.episode_id for sample in only_winners] == ["s/1"]


def test_rewards_and_weights_that_are_not_finite_are_refused() -> None:
    turn = Sample((1,), (2,), 1.0)
    with pytest.raises(InputError, match="not a finite number"):
        Sample((1,), (2,), math.nan)
    with pytest.raises(InputError, match="its weight is inf"):
        GameSample("g", Role.ATTACKER, math.inf, (turn,))
    with pytest.raises(InputError, match="no target token"):
        Sample((1,), (), 1.0)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"learner": {"reference": "none"}}, "kl_coeff: 0"),
        ({"learner": {"reference": "engine"}, "render": "varied"}, "other prompts than were played"),
        ({"learner": {"reference": "engine"}, "sampling": {"temperature": 0.0}}, "temperature is 0"),
        (
            {"learner": {"reference": "engine"}, "objective": {"loss": "published"}, "sampling": {"temperature": 1.2}},
            "plain softmax",
        ),
        ({"objective": {"length_norm": "constant"}}, "constant_length"),
    ],
)
def test_settings_that_would_not_be_exact_are_refused_with_the_remedy(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_config(changes)


def test_a_mean_baseline_leaves_each_role_what_is_above_or_below_its_own_average() -> None:
    lopsided = [*(game(number, Outcome.ATTACKER_WINS) for number in range(3)), game(3, Outcome.DEFENDER_WINS)]
    objective = ObjectiveConfig(learn_from="both", baseline="mean", role_weights="none")
    games = game_samples(lopsided, objective)
    totals = {role: [sum(t.advantage for t in sample.turns if t.role is role) for sample in games] for role in Role}
    assert totals[Role.ATTACKER] == pytest.approx([0.5, 0.5, 0.5, -1.5])
    assert totals[Role.DEFENDER] == pytest.approx([-0.5, -0.5, -0.5, 1.5])
    assert {sample.weight for sample in games} == {1.0}


def test_a_tie_is_good_news_for_the_side_that_mostly_loses() -> None:
    games = [*(game(number, Outcome.ATTACKER_WINS) for number in range(3)), game(3, Outcome.TIED, num_turns=10)]
    objective = ObjectiveConfig(learn_from="both", baseline="mean", role_weights="none")
    tied = game_samples(games, objective, Payoffs(tie=(0, 0)))[-1]
    assert tied.role is None
    assert tied.weight == 1.0
    assert len(tied.turns) == 10
    gained = {role: sum(turn.advantage for turn in tied.turns if turn.role is role) for role in Role}
    assert gained == {Role.ATTACKER: pytest.approx(-0.75), Role.DEFENDER: pytest.approx(0.75)}
    assert len(game_samples(games, ObjectiveConfig(learn_from="both", baseline="mean"))) == 3


def test_a_game_that_a_full_context_ended_is_not_learned_even_where_ties_are() -> None:
    verdict = out_of_room(Role.DEFENDER, 3)
    cut = replace(game(9, Outcome.TIED, num_turns=3), verdict=verdict)
    for baseline in ("mean", "moving"):
        objective = ObjectiveConfig(learn_from="both", baseline=baseline, role_weights="none")
        payoffs = Payoffs(tie=(0, 0), defender_breach=(0, -1))
        moving, other = RoleBaselines(), RoleBaselines()
        learned = game_samples([*WON, cut], objective, payoffs, moving if baseline == "moving" else None)
        assert learned == game_samples(WON, objective, payoffs, other if baseline == "moving" else None)
        assert moving.values == other.values
    assert game_samples([*WON, game(9, Outcome.TIED)], objective, payoffs) != learned


def test_payoffs_of_ties_from_which_nothing_follows_are_refused() -> None:
    both, baseline = {"learn_from": "both"}, {"baseline": "mean"}
    for objective, tie in (({}, [-0.3, -0.3]), (baseline, [0, 0]), (both, [0, 0])):
        with pytest.raises(ConfigError, match=r"payoffs\.tie"):
            parse_config({"objective": objective, "game": {"payoffs": {"tie": tie}}})
    assert parse_config({"objective": both, "game": {"payoffs": {"tie": [-0.3, None]}}}).game.payoffs.tie == (
        -0.3,
        None,
    )


def test_of_a_loser_the_turn_alone_that_lost_the_game_can_be_pushed_down() -> None:
    objective = ObjectiveConfig(learn_from="both", loser_turns="deciding")
    blunder, beaten = game_samples(
        [game(0, Outcome.ATTACKER_WINS, decided_by=3), game(1, Outcome.DEFENDER_WINS, decided_by=3)],
        objective,
        Payoffs(wrong_guess=(1, -0.5)),
    )
    assert [(turn.role, round(turn.advantage, 4)) for turn in blunder.turns] == [
        (Role.ATTACKER, 0.4444),
        (Role.ATTACKER, 0.5556),
        (Role.DEFENDER, -0.5),
    ]
    assert {turn.role for turn in beaten.turns} == {Role.DEFENDER}, "the attacker lost by what the other said"
    (outplayed,) = game_samples([game(2, Outcome.ATTACKER_WINS, num_turns=3, decided_by=2)], objective)
    assert [round(turn.advantage, 4) for turn in outplayed.turns] == [0.4444, 0.5556], "so did this defender"


def test_a_baseline_by_scenario_is_the_mean_of_the_games_with_the_same_word() -> None:
    """Two words: the attacker wins one of three games of the first, and all of the second's; a third word has one
    game."""
    outcomes = [("river", Outcome.ATTACKER_WINS), ("river", Outcome.DEFENDER_WINS), ("river", Outcome.DEFENDER_WINS)]
    outcomes += [("piano", Outcome.ATTACKER_WINS)] * 2 + [("tiger", Outcome.DEFENDER_WINS)]
    games = [replace(game(number, outcome, 2), scenario=word) for number, (word, outcome) in enumerate(outcomes)]
    objective = ObjectiveConfig(learn_from="both", baseline="scenario", role_weights="none")
    found = [[round(turn.advantage, 4) for turn in each.turns] for each in game_samples(games, objective)]
    assert found[:3] == [[1.3333, -1.3333], [-0.6667, 0.6667], [-0.6667, 0.6667]]
    assert found[3:5] == [[0.0, 0.0], [0.0, 0.0]], "the attacker always wins with this word"
    assert found[5] == [-1.0, 1.0], "one game alone is compared with all games, whose means are 0"


def test_a_seats_results_above_its_baseline_are_divided_by_their_standard_deviation_over_the_batch() -> None:
    """The attacker wins two of four games about one word; of the other word's two games one is tied, at -0.5 each. Its
    R - b are 1, 1, -1, -1 and 0.75, -0.75, so their deviation is sqrt((4 + 2 * 0.5625) / 6) = 0.9242."""
    outcomes = [("river", outcome) for outcome in (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS) for _ in range(2)]
    outcomes += [("piano", Outcome.ATTACKER_WINS), ("piano", Outcome.TIED)]
    games = [replace(game(number, outcome, 2), scenario=word) for number, (word, outcome) in enumerate(outcomes)]
    settings: dict[str, Any] = {"learn_from": "both", "role_weights": "none", "baseline": "scenario"}
    objective = ObjectiveConfig(**settings, baseline_std="batch")
    found = game_samples(games, objective, Payoffs(tie=(-0.5, -0.5)))
    attacker = [round(each.turns[0].advantage, 4) for each in found]
    assert attacker == [1.082, 1.082, -1.082, -1.082, 0.8115, -0.8115]
    # The defender was paid -1, -1, 1, 1 and -1, -0.5: R - b are -1, -1, 1, 1 and -0.25, 0.25.
    defender = [round(each.turns[1].advantage, 4) for each in found]
    assert defender == [-1.2060, -1.2060, 1.2060, 1.2060, -0.3015, 0.3015]


def test_results_that_never_differ_are_not_blown_up_by_their_standard_deviation() -> None:
    settings: dict[str, Any] = {"learn_from": "both", "role_weights": "none", "baseline_std": "batch"}
    won = [game(number, Outcome.ATTACKER_WINS, 2) for number in range(3)]
    alike = game_samples(won, ObjectiveConfig(**settings, baseline="mean"))
    assert {turn.advantage for each in alike for turn in each.turns} == {0.0}
    above = game_samples(won, ObjectiveConfig(**settings, baseline="moving"), baselines=RoleBaselines())
    assert [round(turn.advantage, 4) for turn in above[0].turns] == [1.0, -1.0], "all are above what was expected"


def test_a_breach_that_has_no_baseline_is_not_divided_and_enters_no_deviation() -> None:
    payoffs = Payoffs(attacker_breach=(-0.5, None))
    objective = ObjectiveConfig(learn_from="both", role_weights="none", baseline="mean", baseline_std="batch")
    games = [game(0, Outcome.ATTACKER_WINS, 2), game(1, Outcome.DEFENDER_WINS, 2)]
    breach = game(2, Outcome.ATTACKER_BREACH, 1, decided_by=0)
    found = game_samples([*games, breach], objective, payoffs)
    assert [round(turn.advantage, 4) for each in found for turn in each.turns] == [1.0, -1.0, -1.0, 1.0, -0.5]


def test_the_spread_of_a_scenario_is_the_variance_of_what_its_games_paid() -> None:
    """Of the river 1, -1, 1, -1; of the piano 1, 1 and nothing twice, in both seats; the tiger's games end alike."""
    won, lost, tied = Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS, Outcome.TIED
    ends = {"river": [won, lost] * 2, "piano": [won, won, tied, tied], "tiger": [lost] * 4}
    games = [replace(game(0, end, 2), scenario=word) for word, own in ends.items() for end in own]
    assert spreads(games, Payoffs()) == {"river": 1.0, "piano": 0.0, "tiger": 0.0}, "what agrees teaches nothing"
    assert spreads(games, Payoffs(tie=(-0.5, 0.0)))["piano"] == pytest.approx((0.5625 + 0.25) / 2)


def test_what_a_game_itself_pays_is_trained_on() -> None:
    verdict = replace(game(0, Outcome.ATTACKER_WINS, 2).verdict, end_reason="call", payoffs=(2.0, -2.0))
    paid_two = replace(game(0, Outcome.ATTACKER_WINS, 2), verdict=verdict, game="kuhn")
    objective = ObjectiveConfig(learn_from="both", role_weights="none")
    [found] = game_samples([paid_two], objective)
    assert [turn.advantage for turn in found.turns] == [2.0, -2.0]
    illegal = replace(game(0, Outcome.DEFENDER_BREACH, 2).verdict, payoffs=(2.0, -2.0), turn=1)
    [found] = game_samples([replace(paid_two, verdict=illegal)], objective)
    assert [turn.advantage for turn in found.turns] == [2.0, -2.0], "the forfeit goes to the turn that was illegal"

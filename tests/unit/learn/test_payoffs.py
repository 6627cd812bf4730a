"""What the end of a game pays each turn, and how files of earlier versions are read."""

from dataclasses import replace
from typing import Any

import pytest

from spag_ray.config.loading import parse_config
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import PAID_ENDS, Payoffs
from spag_ray.episodes.episode import Episode
from spag_ray.errors import ConfigError
from spag_ray.game.rules import GAME_ENDS, EndReason, GameEnd, Outcome, Role, Verdict, next_role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.referee.judge import judge
from spag_ray.training_data.game_samples import game_samples
from spag_ray.training_data.rewards import MeanPayoffs, RoleBaselines, paid
from tests.support.episodes import game

EVERY = Payoffs(
    trap=(0.1, -0.1),
    wrong_guess=(0.2, -0.2),
    right_guess=(-0.3, 0.3),
    tie=(-0.25, -0.4),
    attacker_breach=(-0.5, 0.05),
    defender_breach=(0.06, -0.6),
)


def ended(end: GameEnd, num_turns: int = 4) -> Episode:
    """A game whose last turn decided it."""
    episode = game(0, end.outcome, num_turns, decided_by=None if end.outcome is Outcome.TIED else num_turns - 1)
    return replace(episode, verdict=replace(episode.verdict, end_reason=end.reason))


def learned(episode: Episode, payoffs: Payoffs, **objective: Any) -> list[tuple[str, float]]:
    games = game_samples([episode], ObjectiveConfig.model_validate({"role_weights": "none", **objective}), payoffs)
    return [(str(turn.role)[0], round(turn.advantage, 4)) for each in games for turn in each.turns]


@pytest.mark.parametrize("end", GAME_ENDS, ids=str)
def test_every_end_pays_by_its_own_entry(end: GameEnd) -> None:
    found = paid(EVERY, ended(end).verdict)
    wanted = {
        "attacker win: said the word": EVERY.trap,
        "attacker win: wrong guess": EVERY.wrong_guess,
        "defender win: right guess": EVERY.right_guess,
        "none tie: undecided": EVERY.tie,
        "none tie: context full": (None, None),
    }.get(str(end), EVERY.attacker_breach if end.seat == "attacker" else EVERY.defender_breach)
    assert (found[Role.ATTACKER], found[Role.DEFENDER]) == wanted


def test_the_worked_game_of_the_documentation() -> None:
    """docs/appendix/learner.md, "What payoffs give each turn": four turns, payoffs of 0.5 / -1."""
    payoffs = Payoffs(wrong_guess=(0.5, -1), tie=(-0.3, -0.3))
    wrong = ended(GameEnd(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS))
    assert learned(wrong, payoffs) == [("a", 0.2222), ("a", 0.2778)]
    both = [("a", 0.2222), ("d", -0.4444), ("a", 0.2778), ("d", -0.5556)]
    assert learned(wrong, payoffs, learn_from="both") == both
    deciding = learned(wrong, payoffs, learn_from="both", loser_turns="deciding")
    assert deciding == [("a", 0.2222), ("a", 0.2778), ("d", -1.0)]
    tied = ended(GameEnd(Outcome.TIED, EndReason.UNDECIDED))
    assert learned(tied, payoffs) == []
    for turns in ("all", "deciding"):
        shared = learned(tied, payoffs, learn_from="both", loser_turns=turns)
        assert shared == [("a", -0.1333), ("d", -0.1333), ("a", -0.1667), ("d", -0.1667)]


def guessed(*replies: str) -> Episode:
    """A game of three guesses about a cat."""
    contents = [text for reply in replies for text in ("It purrs.", reply)]
    history = [{"role": str(next_role(n)), "content": text} for n, text in enumerate(contents)]
    verdict = judge(history, "cat", 5, max_guesses=3)
    turns = tuple(Turn(next_role(n), text, (1, 2), (3, 4), (-0.5, -0.5), "p") for n, text in enumerate(contents))
    return Episode("s/0", 0, "s", "cat", 5, "strict", 1.0, turns, verdict)


DOG, COW, CAT = (f"I know the word! It is `{word}`!" for word in ("dog", "cow", "cat"))


@pytest.mark.parametrize(
    ("replies", "objective", "wanted"),
    [
        # shares of three turns: 0.2623, 0.3279, 0.4098
        ((DOG, "Hm.", CAT), {}, [("d", 0.0623), ("d", 0.3279), ("d", 0.4098)]),
        (
            (DOG, "Hm.", CAT),
            {"learn_from": "both"},
            [("a", -0.1623), ("d", 0.0623), ("a", -0.3279), ("d", 0.3279), ("a", -0.4098), ("d", 0.4098)],
        ),
        ((DOG, "Hm.", CAT), {"guess_credit": "guess"}, [("d", -0.2), ("d", 1.0)]),
        ((DOG, COW, DOG), {}, [("a", 0.3623), ("a", 0.4279), ("a", 0.4098)]),  # the last one is wrong_guess
        (
            (DOG, COW, DOG),
            {"learn_from": "both", "loser_turns": "deciding"},
            [("a", 0.3623), ("d", -0.2), ("a", 0.4279), ("d", -0.2), ("a", 0.4098), ("d", -1.0)],
        ),
        ((DOG, "A cat?"), {"trap_credit": "trap"}, [("a", 0.1), ("a", 1.0)]),
        ((DOG, COW, "Hm."), {"learn_from": "both"}, []),  # a tie that pays nobody
        ((DOG, "I know the word! It is a cow or a cat."), {}, [("a", 0.5444), ("a", 0.5556)]),
    ],
)
def test_a_wrong_guess_that_did_not_end_the_game_pays_its_own_turns(
    replies: tuple[str, ...], objective: dict[str, Any], wanted: list[tuple[str, float]]
) -> None:
    assert learned(guessed(*replies), Payoffs(early_guess=(0.1, -0.2)), **objective) == wanted


def test_wrong_guesses_that_cost_nothing_train_no_turn_of_their_own() -> None:
    """And the payoff of a seat alone leaves the other seat's turns as they were."""
    credit = {"guess_credit": "guess", "learn_from": "both", "loser_turns": "deciding"}
    assert learned(guessed(DOG, CAT), Payoffs(), **credit) == [("d", 1.0)]
    assert learned(guessed(DOG, CAT), Payoffs(early_guess=(0, -0.5)), **credit) == [("d", -0.5), ("d", 1.0)]


def test_credit_for_a_trap_may_go_to_the_turn_before_the_word_was_said() -> None:
    payoffs = Payoffs(wrong_guess=(0.5, -1))
    trap = ended(GameEnd(Outcome.ATTACKER_WINS, EndReason.SAID_WORD))
    assert learned(trap, payoffs) == [("a", 0.4444), ("a", 0.5556)]
    assert learned(trap, payoffs, trap_credit="trap") == [("a", 1.0)]
    both = learned(trap, payoffs, trap_credit="trap", learn_from="both", loser_turns="deciding")
    assert both == [("a", 1.0), ("d", -1.0)]
    wrong = ended(GameEnd(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS))
    assert learned(wrong, payoffs, trap_credit="trap") == [("a", 0.2222), ("a", 0.2778)]


def test_credit_for_a_right_guess_may_go_to_the_guess() -> None:
    right = ended(GameEnd(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS))
    assert learned(right, Payoffs()) == [("d", 0.4444), ("d", 0.5556)]
    assert learned(right, Payoffs(), guess_credit="guess") == [("d", 1.0)]
    both = learned(right, Payoffs(), guess_credit="guess", learn_from="both")
    assert both == [("a", -0.4444), ("a", -0.5556), ("d", 1.0)]
    wrong = ended(GameEnd(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS))
    assert learned(wrong, Payoffs(), guess_credit="guess") == learned(wrong, Payoffs())


def test_a_breach_pays_the_turn_that_broke_the_rules_and_the_other_seat_if_it_is_paid() -> None:
    breach = ended(GameEnd(Outcome.ATTACKER_BREACH, EndReason.SAID_WORD), num_turns=5)
    assert learned(breach, Payoffs()) == []
    assert learned(breach, EVERY) == [("a", -0.5)], "winners alone: nobody won"
    assert learned(breach, EVERY, learn_from="both") == [("d", 0.0222), ("d", 0.0278), ("a", -0.5)]


def test_baselines_are_of_what_was_paid_and_skip_who_was_paid_nothing() -> None:
    payoffs = Payoffs(wrong_guess=(0.5, None))
    verdicts = [ended(end).verdict for end in (GAME_ENDS[0], GAME_ENDS[1])]
    results = [paid(payoffs, verdict) for verdict in verdicts]
    means = MeanPayoffs(by_scenario=True)
    assert means.expected("river") == {Role.ATTACKER: 0.0, Role.DEFENDER: 0.0}
    for scenario, result in zip(("river", "piano"), results, strict=True):
        means.add(scenario, result)
    assert means.expected("river") == {Role.ATTACKER: 0.75, Role.DEFENDER: -1.0}, "one game of a word is no mean"
    means.add("river", results[0])
    assert means.expected("river") == {Role.ATTACKER: 0.5, Role.DEFENDER: -1.0}, "nobody paid the defender there"
    means.add("river", {Role.ATTACKER: None, Role.DEFENDER: 1.0})
    means.add("river", {Role.ATTACKER: None, Role.DEFENDER: None})
    assert means.expected("river")[Role.DEFENDER] == 0.0, "its only payment there is not compared with itself"
    moving = RoleBaselines(decay=0.5)
    moving.update(results)
    assert moving.values == {Role.ATTACKER: pytest.approx(0.625), Role.DEFENDER: pytest.approx(-0.5)}
    wrong = ended(GAME_ENDS[0])
    assert learned(wrong, payoffs, learn_from="both", baseline="mean") == [("a", 0.0), ("a", 0.0)]


@pytest.mark.parametrize(
    ("payoffs", "reason"),
    [
        ({"trap": [2.5, -1]}, "less than or equal to 2"),
        ({"wrong_guess": [0.5, -3]}, "greater than or equal to -2"),
        ({"right_guess": [0.5, 1]}, "help the defender"),
        ({"right_guess": [None, 1]}, "help the defender"),
        ({"right_guess": [-0.3, 1], "tie": [-0.3, -0.3]}, "help the defender"),
        ({"trap": [1]}, "payoffs.trap"),
        ({"win": [1, -1]}, "unknown key"),
        ({"trap": [float("nan"), -1]}, "payoffs.trap"),
    ],
)
def test_payoffs_that_pay_helping_or_out_of_range_are_refused(payoffs: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        parse_config({"game": {"payoffs": payoffs}, "objective": {"learn_from": "both"}})


def test_an_attacker_that_no_end_pays_cannot_be_paid_for_helping() -> None:
    nothing: dict[str, Any] = {end: [None, None] for end in PAID_ENDS}
    assert parse_config({"game": {"payoffs": nothing}}).game.payoffs.right_guess == (None, None)
    assert parse_config({"game": {"payoffs": {**nothing, "right_guess": [None, 1]}}}).game.payoffs.right_guess[1] == 1
    with pytest.raises(ConfigError, match="help the defender"):
        parse_config({"game": {"payoffs": {**nothing, "trap": [1, None]}}})


def test_wins_that_pay_their_winner_nothing_do_not_weigh_where_winners_learn() -> None:
    wrong, trap = (ended(end) for end in (GAME_ENDS[0], GAME_ENDS[1]))
    right = ended(GameEnd(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS))
    payoffs = Payoffs(wrong_guess=(None, -1))
    games = game_samples([*[wrong] * 8, trap, right], ObjectiveConfig(), payoffs)
    assert [(each.role, each.weight) for each in games] == [(Role.ATTACKER, 1.0), (Role.DEFENDER, 1.0)]
    both = game_samples([*[wrong] * 8, trap, right], ObjectiveConfig(learn_from="both"), payoffs)
    assert len(both) == 10
    assert both[0].weight == pytest.approx(10 / 18)


def test_wins_of_a_log_that_does_not_say_how_pay_as_wrong_guesses() -> None:
    verdict = Verdict(Outcome.ATTACKER_WINS, EndReason.OTHER, 2, "", 1, None)
    assert paid(EVERY, verdict)[Role.ATTACKER] == 0.2


HELPING = {"trap": (0, 0), "wrong_guess": (-0.5, -0.5), "right_guess": (1, 1), "tie": (-0.2, -0.2), "cooperative": True}


def test_payoffs_that_pay_helping_are_refused_with_the_key_that_allows_them() -> None:
    with pytest.raises(ConfigError, match=r"pays the attacker 1, a tie -0.2.*or payoffs\.cooperative: true if both"):
        parse_config({"game": {"payoffs": {**HELPING, "cooperative": False}}, "objective": {"learn_from": "both"}})
    config = parse_config({"game": {"payoffs": HELPING}, "objective": {"learn_from": "both"}})
    assert config.game.payoffs.pays_helping
    assert not Payoffs().pays_helping


def test_a_right_guess_in_a_cooperative_game_pushes_both_seats_up() -> None:
    right = ended(GameEnd(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS))
    up = [("a", 0.4444), ("d", 0.4444), ("a", 0.5556), ("d", 0.5556)]
    assert sorted(learned(right, Payoffs(**HELPING), learn_from="both")) == sorted(up)
    wrong = ended(GameEnd(Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS))
    down = [(seat, pytest.approx(-value / 2, abs=1e-4)) for seat, value in up]
    assert learned(wrong, Payoffs(**HELPING), learn_from="both") == down


@pytest.mark.parametrize(
    ("objective", "said"),
    [
        ({"learn_from": "winners"}, "the winner alone is trained; set objective.learn_from: both"),
        ({"learn_from": "both", "loser_turns": "deciding"}, "trained on a right guess; set objective.loser_turns: all"),
    ],
)
def test_an_attacker_is_not_paid_for_helping_where_it_is_not_trained_on_it(objective: Any, said: str) -> None:
    payoffs = {"right_guess": [0.5, 1], "cooperative": True}
    with pytest.raises(ConfigError, match=rf"game\.payoffs\.right_guess: the attacker is paid, but .*{said}"):
        parse_config({"game": {"payoffs": payoffs}, "objective": objective})
    phases = {"phases": [{"rounds": 1}, {"rounds": 1, "payoffs": payoffs}]}
    with pytest.raises(ConfigError, match=rf"self_play\.phases\.1\.payoffs\.right_guess: .*{said}"):
        parse_config({"self_play": phases, "objective": objective})
    unpaid = {**payoffs, "right_guess": [None, 1]}
    assert parse_config({"game": {"payoffs": unpaid}, "objective": objective}).game.payoffs.cooperative

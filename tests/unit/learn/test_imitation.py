"""Whose turns of a stronger player's games are imitated."""

from dataclasses import replace

import pytest

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import ImitatedSides
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import EndReason, Outcome, Role, next_role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.referee.judge import judge
from spag_ray.training_data.imitation import imitated_turns, imitation_samples
from spag_ray.training_data.samples import GameSample
from tests.support.episodes import game

PLAYED = [
    game(0, Outcome.ATTACKER_WINS, decided_by=3),
    game(1, Outcome.DEFENDER_WINS, decided_by=3),
    game(2, Outcome.ATTACKER_WINS, decided_by=3),
    game(3, Outcome.TIED),
    game(4, Outcome.ATTACKER_BREACH, num_turns=3, decided_by=2),
]


def roles(games: list[GameSample]) -> list[list[str]]:
    return [[str(turn.role)[0] for turn in each.turns] for each in games]


def test_ties_breaches_and_losers_are_left_out_whatever_self_play_learns() -> None:
    objective = ObjectiveConfig(learn_from="both", trap_credit="trap", guess_credit="guess", baseline="mean")
    games = imitation_samples(PLAYED, objective, "winners")
    assert roles(games) == [["a", "a"], ["d", "d"], ["a", "a"]]
    assert [each.weight for each in games] == [0.75, 1.5, 0.75]
    assert all(turn.sampler_logprobs is None for each in games for turn in each.turns)


def test_a_breach_that_a_game_of_ones_own_pays_for_is_not_imitated() -> None:
    broken = game(4, Outcome.ATTACKER_BREACH, num_turns=3, decided_by=2)
    paid = replace(broken, verdict=replace(broken.verdict, payoffs=(-1.0, None)))
    assert roles(imitation_samples([PLAYED[0], paid], ObjectiveConfig(), "winners")) == [["a", "a"]]


def test_no_baseline_of_self_play_is_subtracted_from_what_is_imitated() -> None:
    plain = imitation_samples(PLAYED, ObjectiveConfig(), "winners")
    for baseline in ("moving", "mean", "scenario"):
        objective = ObjectiveConfig.model_validate({"baseline": baseline, "baseline_std": "batch"})
        assert imitation_samples(PLAYED, objective, "winners") == plain


@pytest.mark.parametrize("max_guesses", [1, 2])
def test_the_shares_of_a_winners_turns_are_those_of_the_objective(max_guesses: int) -> None:
    (first, *_) = imitation_samples(PLAYED, ObjectiveConfig(decay=0.5), "winners", max_guesses=max_guesses)
    assert [turn.advantage for turn in first.turns] == pytest.approx([1 / 3, 2 / 3])


def test_of_both_the_loser_is_imitated_but_for_the_turn_that_lost_the_game() -> None:
    games = imitation_samples(PLAYED, ObjectiveConfig(), "both")
    assert roles(games) == [["a", "d", "a"], ["a", "d", "a", "d"], ["a", "d", "a"]]
    assert [each.weight for each in games] == [1.0] * 3, "each game teaches both seats"
    assert [each.role for each in games] == [Role.ATTACKER, Role.DEFENDER, Role.ATTACKER]


@pytest.mark.parametrize(
    ("outcome", "reason", "imitated"),
    [
        (Outcome.ATTACKER_WINS, EndReason.SAID_WORD, {0, 1, 2, 3}),
        (Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS, {0, 1, 2}),
        (Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS, {0, 1, 2, 3}),
        (Outcome.ATTACKER_BREACH, EndReason.SAID_WORD, set()),
    ],
)
def test_of_all_the_reply_that_said_the_word_is_imitated_but_no_wrong_guess_and_no_breach(
    outcome: Outcome, reason: EndReason, imitated: set[int]
) -> None:
    found = game(0, outcome, decided_by=3)
    assert (
        set(imitated_turns(replace(found, verdict=replace(found.verdict, end_reason=reason)), "all", 0.8)) == imitated
    )


@pytest.mark.parametrize(("sides", "left"), [("winners", [["a", "a"], ["d"], ["a", "a"]]), ("both", [[*"ada"]] * 3)])
def test_without_claims_the_turn_that_named_the_word_is_left_out(sides: ImitatedSides, left: list[list[str]]) -> None:
    assert roles(imitation_samples(PLAYED, ObjectiveConfig(), sides, claims=False)) == left
    assert set(imitated_turns(PLAYED[1], "both", 0.8, claims=False)) == {0, 1, 2}
    only_claim = game(6, Outcome.DEFENDER_WINS, num_turns=2, decided_by=1)
    assert imitation_samples([only_claim], ObjectiveConfig(), "winners", claims=False) == []


def test_the_turns_of_each_seat_share_one_of_their_own() -> None:
    lost = imitated_turns(PLAYED[0], "both", 0.8)
    assert lost == pytest.approx({0: 4 / 9, 1: 1.0, 2: 5 / 9})
    assert imitated_turns(PLAYED[1], "both", 0.8) == pytest.approx({0: 4 / 9, 1: 4 / 9, 2: 5 / 9, 3: 5 / 9})
    only_mistake = game(5, Outcome.ATTACKER_WINS, num_turns=2, decided_by=1)
    assert imitated_turns(only_mistake, "both", 0.8) == {0: 1.0}


def test_credit_of_self_play_does_not_say_which_turns_of_a_winner_are_imitated() -> None:
    objective = ObjectiveConfig(trap_credit="trap", guess_credit="guess", loser_turns="deciding", learn_from="both")
    ends = [(Outcome.ATTACKER_WINS, EndReason.SAID_WORD), (Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS)]
    won = [game(number, outcome, decided_by=3) for number, (outcome, _) in enumerate(ends)]
    won = [replace(g, verdict=replace(g.verdict, end_reason=reason)) for g, (_, reason) in zip(won, ends, strict=True)]
    assert roles(imitation_samples(won, objective, "winners")) == [["a", "a"], ["d", "d"]]


def test_of_all_every_turn_of_another_game_than_taboo_is_imitated() -> None:
    found = game(0, Outcome.ATTACKER_WINS, decided_by=3)
    played = replace(found, verdict=replace(found.verdict, end_reason="call", payoffs=(2.0, -2.0)))
    assert set(imitated_turns(played, "all", 0.8)) == {0, 1, 2, 3}
    assert set(imitated_turns(played, "both", 0.8)) == {0, 1, 2}
    guessed = replace(played, verdict=replace(played.verdict, end_reason="wrong guess"))
    assert set(imitated_turns(guessed, "all", 0.8)) == {0, 1, 2, 3}, "a reason of Taboo's by chance"


@pytest.mark.parametrize(
    ("sides", "claims", "found", "lost"),
    [
        ("winners", True, [3, 5], [0, 2, 4]),
        ("winners", False, [3], [0, 2, 4]),
        ("all", True, [0, 2, 3, 4, 5], [0, 2, 4]),
    ],
)
def test_wrong_guesses_that_ended_no_game_are_never_imitated(
    sides: ImitatedSides, claims: bool, found: list[int], lost: list[int]
) -> None:
    right, wrong = (
        guessed("I know the word! It is `dog`!", "Hm.", CLAIM),
        guessed(*["I know the word! It is `cow`!"] * 3),
    )
    assert list(imitated_turns(right, sides, 0.8, claims, max_guesses=3)) == found
    assert list(imitated_turns(wrong, sides, 0.8, claims, max_guesses=3)) == lost
    games = imitation_samples([right, wrong], ObjectiveConfig(), sides, claims, max_guesses=3)
    assert [len(each.turns) for each in games] == [len(found), len(lost)]
    assert [each.weight for each in games] == [1.0, 1.0], "each seat has won one game"


CLAIM = "I know the word! It is `cat`!"


def guessed(*replies: str) -> Episode:
    """A game of three guesses about a cat."""
    contents = [text for reply in replies for text in ("It purrs.", reply)]
    history = [{"role": str(next_role(n)), "content": text} for n, text in enumerate(contents)]
    turns = tuple(Turn(next_role(n), text, (1, 2), (3, 4), (-0.5, -0.5), "p") for n, text in enumerate(contents))
    verdict = judge(history, "cat", 5, max_guesses=3)
    return Episode(f"s/{replies[0]}", 0, "s", "cat", 5, "strict", 1.0, turns, verdict)


def test_a_turn_without_a_token_is_left_out() -> None:
    first, *rest = PLAYED[1].turns
    silent = replace(PLAYED[1], turns=(replace(first, token_ids=(), logprobs=()), *rest))
    assert roles(imitation_samples([silent], ObjectiveConfig(), "both")) == [["d", "a", "d"]]


def test_without_claims_the_winners_other_turns_share_one() -> None:
    won = game(0, Outcome.DEFENDER_WINS, num_turns=6, decided_by=5)
    for max_guesses in (1, 2):
        (learned,) = imitation_samples([won], ObjectiveConfig(), "winners", claims=False, max_guesses=max_guesses)
        assert [turn.advantage for turn in learned.turns] == pytest.approx([1 / 2.25, 1.25 / 2.25])


def test_a_win_that_pays_the_winner_nothing_is_not_imitated() -> None:
    won = game(0, Outcome.DEFENDER_WINS, decided_by=3)
    won = replace(won, verdict=replace(won.verdict, payoffs=(-1.0, None)))
    for claims in (True, False):
        assert imitation_samples([won], ObjectiveConfig(), "winners", claims=claims) == []

"""What games paid, how they ended and how long their replies were: means by seat, shares of all."""

import math
from dataclasses import replace

from spag_ray.config.parts import Payoffs
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import EndReason, Outcome
from spag_ray.results.game_figures import game_figures
from spag_ray.results.lines import GameFigures, PlayLine, parse_line
from tests.support.episodes import game

PLAYERS = {turn.policy for turn in game(0, Outcome.TIED).turns}
PAYOFFS = {"taboo": Payoffs(wrong_guess=(0.5, -1.0), right_guess=(-1.0, 1.0))}


def won(number: int, outcome: Outcome, end_reason: EndReason) -> Episode:
    found = game(number, outcome)
    return replace(found, verdict=replace(found.verdict, end_reason=end_reason))


GAMES = [
    won(0, Outcome.ATTACKER_WINS, EndReason.WRONG_GUESS),
    won(1, Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS),
    game(2, Outcome.TIED),
    game(3, Outcome.DEFENDER_BREACH),
]


def test_each_seat_has_the_mean_of_what_its_games_paid_and_shares_are_of_all_games() -> None:
    found = game_figures(GAMES, PAYOFFS, PLAYERS)
    assert found.reward_mean == {"attacker": -0.25, "defender": 0.0}, "ties and breaches pay nobody"
    assert found.reward_std == {"attacker": 0.75, "defender": 1.0}
    assert found.win_share == {"attacker": 0.25, "defender": 0.25}
    assert (found.tie_share, found.breach_share) == (0.25, 0.25)


def test_a_game_that_pays_by_itself_is_counted_with_what_it_paid() -> None:
    paid = replace(GAMES[2], game="kuhn", verdict=replace(GAMES[2].verdict, payoffs=(2.0, -2.0)))
    assert game_figures([paid], {"kuhn": Payoffs()}, PLAYERS).reward_mean == {"attacker": 2.0, "defender": -2.0}


def test_lengths_are_of_sampled_tokens_and_cut_replies_are_a_share_of_turns() -> None:
    turns = list(GAMES[0].turns)
    turns[0] = replace(turns[0], token_ids=(3, 4, 5, 6), logprobs=(-0.5, 0.0, -0.5, -0.5), forced=(1, 2))
    turns[1] = replace(turns[1], finish_reason="length")
    found = game_figures([replace(GAMES[0], turns=tuple(turns))], PAYOFFS, PLAYERS)
    assert (found.reply_tokens_mean, found.reply_tokens_max, found.truncated_share) == (2.25, 3, 0.25)


def test_wrong_guesses_that_ended_nothing_are_counted_where_there_may_be_some() -> None:
    """Of three games: two, none, and one that is not counted because it ended the game."""
    wrong = "I know the word! It is `dog`!"

    def said(replies: tuple[str, str], decided_by: int | None) -> Episode:
        found = game(0, Outcome.ATTACKER_WINS if decided_by else Outcome.TIED, decided_by=decided_by)
        texts = [text for reply in replies for text in ("It purrs.", reply)]
        return replace(found, turns=tuple(replace(t, text=text) for t, text in zip(found.turns, texts, strict=True)))

    played = [said((wrong, wrong), None), said(("Hm.", "Hm."), None), said(("Hm.", wrong), 3)]
    assert game_figures(played, PAYOFFS, PLAYERS, {"taboo"}).early_guesses_mean == 0.6667
    assert game_figures(played, PAYOFFS, PLAYERS).early_guesses_mean is None


def test_replies_of_outside_players_have_no_lengths() -> None:
    turns = list(GAMES[0].turns)
    turns[1] = replace(turns[1], policy="served", token_ids=(3,) * 50, logprobs=(0.0,) * 50, finish_reason="length")
    found = game_figures([replace(GAMES[0], turns=tuple(turns))], PAYOFFS, PLAYERS)
    assert (found.reply_tokens_max, found.truncated_share) == (2, 0.0)


def heard(episode: Episode, *known: float) -> Episode:
    """After the rules, and after each hint."""
    places = [0, *range(1, episode.num_turns, 2)]
    at = dict(zip(places, known, strict=True))
    turns = [
        replace(turn, listener_logprob=math.log(at[place])) if place in at else turn
        for place, turn in enumerate(episode.turns)
    ]
    return replace(episode, turns=tuple(turns))


def test_what_a_listener_knows_is_a_mean_of_games_and_a_gain_one_of_hints() -> None:
    broken = replace(GAMES[3], turns=GAMES[3].turns[:1], verdict=replace(GAMES[3].verdict, length=1))
    games = [heard(GAMES[0], 0.1, 0.3, 0.2), heard(GAMES[1], 0.1, 0.2, 0.6), GAMES[2], heard(broken, 0.1)]
    found = game_figures(games, PAYOFFS, PLAYERS, heard={"taboo"})
    assert found.listener_p == 0.4, "0.2 and 0.6; nobody heard a hint of the last game"
    assert found.gain_mean == 0.15, "0.2, -0.1, 0.1, 0.4"
    assert found.num_unscored == 1
    other = game_figures(games, PAYOFFS, PLAYERS, heard={"kuhn"})
    assert (other.listener_p, other.gain_mean, other.num_unscored) == (None, None, None)
    small = game_figures([heard(GAMES[0], 1e-7, 3.14159e-7, 2e-7)], PAYOFFS, PLAYERS, heard={"taboo"})
    assert (small.listener_p, small.gain_mean) == (2e-7, 5e-8), "of a model that knows little"
    lost = game_figures(GAMES[:2], PAYOFFS, PLAYERS, heard={"taboo"})
    assert (lost.listener_p, lost.gain_mean, lost.num_unscored) == (None, None, 2)


def test_what_does_not_apply_is_left_out() -> None:
    assert game_figures([], PAYOFFS, PLAYERS) == GameFigures()
    tied = game_figures([GAMES[2]], PAYOFFS, players=())
    assert tied.reward_mean == {}, "nobody was paid"
    line = PlayLine("expert", "taboo", 0, 1, 4, 8, 1.0, 1.0, 8.0, {"tied game": 1}, figures=tied)
    values = line.values()
    assert not {name for name in values if name.startswith(("reward", "reply", "truncated"))}
    assert values["win_share/attacker"] == 0.0
    assert parse_line({"time": 1.0, "kind": "play", **values}) == line

"""Counts of a run's games as the report has them."""

from dataclasses import replace

import pytest

from spag_ray.game.rules import Outcome
from spag_ray.results.report.transcripts import Payoffs, Transcripts
from tests.support.episodes import game


def test_forced_and_scripted_tokens_are_not_sampled() -> None:
    episode = game(0, Outcome.TIED)
    first = replace(episode.turns[0], token_ids=tuple(range(10)), logprobs=(-0.5,) * 10, forced=(3, 7))
    scripted = replace(episode.turns[1], token_ids=(1, 2, 3), logprobs=(0.0,) * 3, policy="scripted")
    found = Transcripts()
    found.count("spag-1", replace(episode, turns=(first, scripted)), has_several_guesses=False)
    assert (found.num_sampled, found.num_tokens) == (6, 9)


def test_a_game_of_a_stream_counts_with_the_newest_version_that_played_in_it() -> None:
    episode = game(0, Outcome.TIED)
    turns = (replace(episode.turns[0], first_version=1, last_version=2), replace(episode.turns[1], first_version=1))
    found = Transcripts()
    found.count("stream", replace(episode, turns=turns), has_several_guesses=False)
    assert found.by_version == {2: {Outcome.TIED: 1}}, "weights that came in the middle of a turn"


@pytest.mark.parametrize("payoffs", [[-2.0], [1.0] * 9, [1.0, -1.0, 1.0, -1.0]])
def test_few_games_and_games_that_were_all_paid_alike_have_no_interval(payoffs: list[float]) -> None:
    found = Payoffs()
    for payoff in payoffs:
        found.add(payoff)
    assert found.margin is None

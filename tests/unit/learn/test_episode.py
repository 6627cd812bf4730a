"""Episodes: checked when made, the same after a trip over the wire, on disk before they are acknowledged."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.episodes.episode import Episode, EpisodeHead
from spag_ray.episodes.wire import decode, encode, read_head
from spag_ray.errors import InputError
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict, next_role
from spag_ray.game.turn import Turn
from spag_ray.training_data.game_samples import game_samples
from tests.support.episodes import game

texts = st.text(max_size=40)
token_ids = st.lists(st.integers(0, 200_000), min_size=1, max_size=6).map(tuple)


@st.composite
def episodes(draw: st.DrawFn, number: int | None = None) -> Episode:
    turns = []
    for index in range(draw(st.integers(0, 6))):
        tokens = draw(token_ids)
        logprobs = tuple(draw(st.floats(-50, 0)) for _ in tokens)
        turns.append(Turn(next_role(index), draw(texts), draw(token_ids), tokens, logprobs, "p", 1, 2, "stop"))
    count = number if number is not None else draw(st.integers(0, 10**6))
    verdict = Verdict(
        draw(st.sampled_from(Outcome)),
        draw(st.sampled_from(EndReason)),
        len(turns),
        draw(texts),
        draw(st.none() | st.integers(0, 9)),
        (1, 4),
    )
    return Episode(f"s/{count}", count, "s", draw(texts), 3, "strict", 1.0, tuple(turns), verdict)


@given(episodes())
def test_an_episode_survives_the_wire(episode: Episode) -> None:
    assert decode(encode(episode)) == episode


@given(episodes())
def test_the_head_of_a_record_says_what_the_episode_says(episode: Episode) -> None:
    head = read_head(encode(episode))
    assert head == EpisodeHead(**{name: getattr(episode, name) for name in vars(head)})


@given(st.binary(max_size=200))
def test_bytes_that_are_no_episode_are_refused_in_one_line(data: bytes) -> None:
    with pytest.raises(InputError):
        decode(data)


def test_turns_that_do_not_alternate_are_refused_by_number() -> None:
    turn = Turn(Role.ATTACKER, "x", (1,), (2,), (-0.1,), "p")
    verdict = Verdict(Outcome.TIED, EndReason.UNDECIDED, 2, "r", None, None)
    with pytest.raises(InputError, match="turn 1 is by the attacker"):
        Episode("e", 0, "s", "cat", 5, "strict", 1.0, (turn, turn), verdict)


def test_a_logprob_that_is_missing_or_not_finite_is_refused() -> None:
    with pytest.raises(InputError, match="2 sampled tokens but 1"):
        Turn(Role.ATTACKER, "x", (1,), (2, 3), (-0.1,), "p")
    with pytest.raises(InputError, match="not finite"):
        Turn(Role.ATTACKER, "x", (1,), (2,), (math.nan,), "p")


def test_only_winners_turns_are_learned_and_the_roles_count_one_half_each() -> None:
    games = [game(i, Outcome.ATTACKER_WINS) for i in range(6)] + [game(9, Outcome.DEFENDER_WINS)]
    games += [game(10, Outcome.TIED), game(11, Outcome.ATTACKER_BREACH), game(12, Outcome.DEFENDER_BREACH)]
    samples = game_samples(games, ObjectiveConfig())
    assert len(samples) == 7
    assert all(len(sample.turns) == 2 for sample in samples)
    by_role = {role: sum(s.weight for s in samples if s.role is role) for role in Role}
    assert by_role[Role.ATTACKER] == pytest.approx(3.5)
    assert by_role[Role.DEFENDER] == pytest.approx(3.5)
    assert [round(turn.advantage, 4) for turn in samples[0].turns] == [0.4444, 0.5556]
    assert max(sample.weight for sample in game_samples(games, ObjectiveConfig(role_weight_cap=2.0))) == 2.0

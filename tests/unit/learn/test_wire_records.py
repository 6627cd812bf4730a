"""What a record of an episode may hold, what is refused, and the logs of kept run folders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import read_records
from spag_ray.episodes.wire import WIRE_VERSION, decode, encode, read_head
from spag_ray.errors import InputError
from spag_ray.game.game_form import verdict_of
from spag_ray.game.rules import EndReason, Outcome, Verdict, next_role
from spag_ray.game.turn import Turn
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.taboo.game import TabooGame

LOGS = sorted((Path(__file__).resolve().parents[2] / "golden" / "run_folders").glob("*/episodes/*.log"))


VERDICTS = st.builds(
    Verdict,
    st.sampled_from(Outcome),
    st.sampled_from(EndReason),
    st.integers(0, 9),
    st.text(max_size=40),
    st.none() | st.integers(0, 9),
    st.none() | st.tuples(st.integers(0, 9), st.integers(0, 9)),
)


def episode_with(verdict: Verdict) -> Episode:
    turns = tuple(Turn(next_role(n), f"turn {n}", (1, 2), (4, 5), (-0.5, -0.25), "p", 1, 2) for n in range(2))
    return Episode("s/1", 1, "s", "cat", 3, "strict", 1.0, turns, verdict)


EPISODE = episode_with(Verdict(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS, 2, "r", 1, (0, 4)))


def unpacked(episode: Episode) -> dict[str, Any]:
    record: dict[str, Any] = msgpack.unpackb(encode(episode))
    assert record["v"] == WIRE_VERSION == 5
    return record


@given(VERDICTS)
def test_a_verdict_is_kept_whatever_its_words_say(verdict: Verdict) -> None:
    assert decode(encode(episode_with(verdict))).verdict == verdict


@given(st.none() | st.tuples(*[st.none() | st.floats(-2, 2)] * 2))
def test_a_game_of_another_name_keeps_reasons_and_payoffs(payoffs: tuple[float | None, float | None] | None) -> None:
    verdict = Verdict(Outcome.ATTACKER_WINS, "the other folded", 2, "r", 1, (0, 4), payoffs)
    episode = replace(episode_with(verdict), game="mine:Mine", scenario="K against Q")
    assert decode(encode(episode)) == episode
    assert read_head(encode(episode)).verdict == verdict


NONE: dict[str, list[Any]] = {
    "payoffs": [[2.5, 0], [float("nan"), 0], [1], [1, 2, 0], "ab", ["1", 0], 3],
    "the word's log-probability": [0.5, float("nan"), -float("inf"), "-1", True, [-1.0]],
    "a listener's": [[None, value] for value in (0.5, float("nan"), -float("inf"), "-1")] + [[None, -1, 2]],
    "forced tokens": [[forced] for forced in ([0, 9], [1], [0.5, 1], "ab", 3, [0, 2])],
}


@pytest.mark.parametrize(("name", "value"), [(name, value) for name in NONE for value in NONE[name]])
def test_values_that_are_none_are_refused(name: str, value: Any) -> None:
    record = unpacked(EPISODE)
    if name == "payoffs":
        record["verdict"][-1] = value
    elif name == "the word's log-probability":
        record["turns"][1][-1] = value
    else:
        record["turns"][1] += value
    with pytest.raises(InputError):
        decode(msgpack.packb(record))


@pytest.mark.parametrize(
    ("game", "reason"),
    [(EPISODE.game, reason) for reason in ("", "Guessed", "time is up", 3, None, ["guessed"])]
    + [("mine:Mine", reason) for reason in ("x" * 65, 3, None, ["fold"])],
)
def test_an_unknown_end_reason_or_a_long_one_or_none_in_another_game_is_refused(game: str, reason: object) -> None:
    record = unpacked(replace(EPISODE, game=game))
    record["verdict"][1] = reason
    with pytest.raises(InputError, match="not an episode record"):
        decode(msgpack.packb(record))


@given(st.none() | st.floats(max_value=0, allow_infinity=False, allow_nan=False))
def test_the_words_logprob_is_kept(word_logprob: float | None) -> None:
    unknown = episode_with(Verdict(Outcome.TIED, EndReason.UNDECIDED, 2, "no turn of the 2 read decided", None, None))
    attack, defence = unknown.turns
    known = replace(unknown, turns=(attack, replace(defence, word_logprob=word_logprob)))
    assert decode(encode(known)) == known


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parts[-3]}-{log.stem}")
def test_an_old_log_is_read_and_the_referee_agrees_with_it(log: Path) -> None:
    records = list(read_records(log))
    assert records
    assert {msgpack.unpackb(data)["v"] for data in records} == {5}
    for episode in map(decode, records):
        game = KuhnPoker() if episode.game == "kuhn" else TabooGame(None, episode.max_turns, episode.rules)
        assert episode.verdict == verdict_of(game, [turn.text for turn in episode.turns], episode.scenario)
        assert decode(encode(episode)) == episode


@pytest.mark.parametrize("version", [1, 4, 6, -3, "3", None, [3]])
def test_another_version_is_refused(version: object) -> None:
    with pytest.raises(InputError, match="reads version 5"):
        decode(msgpack.packb({**unpacked(EPISODE), "v": version}))
    with pytest.raises(InputError, match="reads version 5"):
        read_head(msgpack.packb({**unpacked(EPISODE), "v": version}))


def test_forced_tokens_are_kept_and_only_turns_that_have_some_hold_a_value_more() -> None:
    attack, defence = EPISODE.turns
    forced = replace(EPISODE, turns=(attack, replace(defence, forced=(1, 2))))
    assert decode(encode(forced)) == forced
    head = read_head(encode(forced))
    assert (head.num_turns, head.num_tokens) == (2, forced.num_tokens) == (2, EPISODE.num_tokens - 1)
    assert [len(turn) for turn in unpacked(forced)["turns"]] == [11, 12]


@given(st.none() | st.floats(max_value=0, allow_infinity=False, allow_nan=False), st.none() | st.just((0, 1)))
def test_what_a_listener_gave_the_word_is_kept(logprob: float | None, forced: tuple[int, int] | None) -> None:
    attack, defence = EPISODE.turns
    heard = replace(EPISODE, turns=(replace(attack, listener_logprob=logprob), replace(defence, forced=forced)))
    assert decode(encode(heard)) == heard
    assert read_head(encode(heard)).num_tokens == heard.num_tokens
    both = replace(attack, listener_logprob=logprob, forced=forced)
    assert decode(encode(replace(EPISODE, turns=(both, defence)))).turns[0] == both


def test_a_game_without_a_listener_is_written_as_before() -> None:
    assert [len(turn) for turn in unpacked(EPISODE)["turns"]] == [11, 11]
    attack, defence = EPISODE.turns
    heard = unpacked(replace(EPISODE, turns=(replace(attack, listener_logprob=-0.5), defence)))
    assert [turn[11:] for turn in heard["turns"]] == [[None, -0.5], []]

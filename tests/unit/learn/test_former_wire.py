"""Records of wire versions 2 and 3 are read. The end reason of version 2 is found from the words of that time, which
are kept here; neither says how probable the word was to the defender."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from spag_ray.episodes.episode import Episode
from spag_ray.episodes.former_wire import end_reason_of
from spag_ray.episodes.log import read_records
from spag_ray.episodes.wire import WIRE_VERSION, decode, encode, read_head
from spag_ray.errors import InputError
from spag_ray.game.end_reason import EndReason
from spag_ray.game.rules import Outcome, Verdict, next_role
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.referee.judge import judge

LOGS = sorted((Path(__file__).resolve().parents[2] / "golden" / "run_folders").glob("*/episodes/*.log"))
# Every message of both referees and of the arenas while version 2 was written.
MESSAGES = {
    "the attacker's reply is empty": EndReason.EMPTY_REPLY,
    "the defender's reply is empty": EndReason.EMPTY_REPLY,
    "the attacker spoke for the defender": EndReason.SPOKE_FOR_OTHER,
    "the defender spoke for the attacker": EndReason.SPOKE_FOR_OTHER,
    "the attacker said 'Cats' (target word 'cat')": EndReason.SAID_WORD,
    "the defender said 'c a t' (target word 'cat')": EndReason.SAID_WORD,
    "the attacker made a guess, which is the defender's part": EndReason.GUESSED,
    "the attacker made a guess, which is the defender's part (target word 'cat')": EndReason.GUESSED,
    "the defender guessed the target word 'cat'": EndReason.RIGHT_GUESS,
    "the defender's guess does not name the target word 'cat' alone": EndReason.WRONG_GUESS,
    "the defender's guess does not name the target word 'cat'": EndReason.WRONG_GUESS,
    "no turn of the 10 read decided the game": EndReason.UNDECIDED,
    "the context had no room for the attacker's reply": EndReason.CONTEXT_FULL,
    "the context had no room for the defender's reply": EndReason.CONTEXT_FULL,
    "time is up": EndReason.OTHER,
    "": EndReason.OTHER,
}


VERDICTS = st.builds(
    Verdict,
    st.sampled_from(Outcome),
    st.sampled_from(EndReason),
    st.integers(0, 9),
    st.sampled_from(list(MESSAGES)) | st.text(max_size=40),
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


def as_version_4(episode: Episode) -> bytes:
    record = unpacked(episode)
    del record["game"]
    packed: bytes = msgpack.packb({**record, "v": 4, "verdict": record["verdict"][:-1]})
    return packed


def as_version_3(episode: Episode) -> bytes:
    record = msgpack.unpackb(as_version_4(episode))
    packed: bytes = msgpack.packb({**record, "v": 3, "turns": [turn[:-1] for turn in record["turns"]]})
    return packed


def as_version_2(episode: Episode) -> bytes:
    record = msgpack.unpackb(as_version_3(episode))
    outcome, _, *others = record["verdict"]
    packed: bytes = msgpack.packb({**record, "v": 2, "verdict": [outcome, *others]})
    return packed


@pytest.mark.parametrize(("words", "reason"), MESSAGES.items())
def test_the_end_reason_is_found_from_the_words_of_the_time(words: str, reason: EndReason) -> None:
    assert end_reason_of(words) is reason


def test_every_reason_has_a_message() -> None:
    assert set(MESSAGES.values()) == set(EndReason)


@given(VERDICTS)
def test_all_else_in_a_record_of_version_2_is_read_as_it_is(verdict: Verdict) -> None:
    found = decode(as_version_2(episode_with(verdict)))
    assert found == episode_with(replace(verdict, end_reason=end_reason_of(verdict.reason)))


@given(VERDICTS)
def test_a_record_of_version_3_to_5_keeps_its_end_reason_whatever_its_words_say(verdict: Verdict) -> None:
    episode = episode_with(verdict)
    for data in (encode(episode), as_version_4(episode), as_version_3(episode)):
        assert decode(data).verdict == verdict
        assert decode(data).game == "taboo"


@given(st.none() | st.tuples(*[st.none() | st.floats(-2, 2)] * 2))
def test_a_game_of_another_name_keeps_its_reasons_and_payoffs(
    payoffs: tuple[float | None, float | None] | None,
) -> None:
    verdict = Verdict(Outcome.ATTACKER_WINS, "the other folded", 2, "r", 1, (0, 4), payoffs)
    episode = replace(episode_with(verdict), game="mine:Mine", scenario="K against Q")
    assert decode(encode(episode)) == episode
    assert read_head(encode(episode)).verdict == verdict


@pytest.mark.parametrize("payoffs", [[2.5, 0], [float("nan"), 0], [1], [1, 2, 0], "ab", ["1", 0], 3])
def test_payoffs_that_are_none_are_refused(payoffs: object) -> None:
    record = unpacked(EPISODE)
    record["verdict"][-1] = payoffs
    with pytest.raises(InputError):
        decode(msgpack.packb(record))


@pytest.mark.parametrize("reason", ["x" * 65, 3, None, ["fold"]])
def test_a_long_reason_or_none_is_refused_in_any_game(reason: object) -> None:
    record = unpacked(replace(EPISODE, game="mine:Mine"))
    record["verdict"][1] = reason
    with pytest.raises(InputError, match="not an episode record"):
        decode(msgpack.packb(record))


@given(st.none() | st.floats(max_value=0, allow_infinity=False, allow_nan=False))
def test_the_words_logprob_is_kept_and_a_record_of_version_2_or_3_has_none(word_logprob: float | None) -> None:
    unknown = episode_with(Verdict(Outcome.TIED, EndReason.UNDECIDED, 2, "no turn of the 2 read decided", None, None))
    attack, defence = unknown.turns
    known = replace(unknown, turns=(attack, replace(defence, word_logprob=word_logprob)))
    assert decode(encode(known)) == known
    for former in (as_version_2(known), as_version_3(known)):
        assert decode(former) == unknown
        assert read_head(former) == read_head(encode(known))


@pytest.mark.parametrize("word_logprob", [0.5, float("nan"), -float("inf"), "-1", True, [-1.0]])
def test_a_words_logprob_that_is_none_is_refused(word_logprob: object) -> None:
    record = unpacked(EPISODE)
    record["turns"][1][-1] = word_logprob
    with pytest.raises(InputError):
        decode(msgpack.packb(record))


@pytest.mark.parametrize("log", LOGS, ids=lambda log: f"{log.parts[-3]}-{log.stem}")
def test_an_old_log_is_read_and_the_referee_agrees_with_it(log: Path) -> None:
    records = list(read_records(log))
    assert records
    assert {msgpack.unpackb(data)["v"] for data in records} == {2}
    for episode in map(decode, records):
        again = judge(episode.history, episode.scenario, episode.max_turns, episode.rules)
        assert episode.verdict.end_reason is again.end_reason
        assert decode(encode(episode)) == episode


@pytest.mark.parametrize("version", [1, 6, -3, "3", None, [3]])
def test_another_version_is_refused(version: object) -> None:
    with pytest.raises(InputError, match="reads versions 2 to 5"):
        decode(msgpack.packb({**unpacked(EPISODE), "v": version}))


@pytest.mark.parametrize("reason", ["", "Guessed", "time is up", 3, None, ["guessed"]])
def test_an_unknown_end_reason_is_refused(reason: object) -> None:
    record = unpacked(EPISODE)
    record["verdict"][1] = reason
    with pytest.raises(InputError, match="not an episode record"):
        decode(msgpack.packb(record))


def test_a_verdict_of_another_version_is_refused() -> None:
    former_2, former_3, now = as_version_2(EPISODE), as_version_3(EPISODE), encode(EPISODE)
    for data, version in ((now, 2), (now, 3), (former_2, 3), (former_2, 4), (former_3, 2), (former_3, 4)):
        with pytest.raises(InputError, match="not an episode record"):
            decode(msgpack.packb({**msgpack.unpackb(data), "v": version}))

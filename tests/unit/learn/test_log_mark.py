"""A restart of a stream reads the log from the cursor's mark on, and comes to the same as if it had read all of it."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.buffer import replay_buffer
from cluster.buffer.log_mark import LogMark, LogTail, Numbers, WinRates
from cluster.buffer.replay_buffer import ReplayBuffer
from cluster.buffer.stream import STAGE, GameStream
from spag_ray.episodes.log import EpisodeLog, LogPlace, holds, log_identity, read_records, read_records_from
from spag_ray.episodes.wire import encode
from spag_ray.game.rules import EndReason, Outcome, Role
from tests.support.episodes import game
from tests.support.streams import numbers, played, stream_of

CONFIG: dict[str, Any] = {"games_per_version": 4, "max_lag": 1, "replay": "prioritized"}
MOST_READ = 24  # those that wait, of max_lag versions, and those that came since the cursor
OUTCOMES = (Outcome.ATTACKER_WINS, Outcome.TIED, Outcome.DEFENDER_WINS)


@pytest.fixture(autouse=True)
def _small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay_buffer, "EpisodeLog", lambda path: EpisodeLog(path, segment_bytes=2000))


def a_run(folder: Path, num_versions: int) -> tuple[ReplayBuffer, dict[str, Any]]:
    """What a stream has written and its cursor, after so many versions and two games more."""
    buffer, stream = ReplayBuffer(str(folder)), stream_of(**CONFIG)
    buffer.open_stream(stream, None)
    for version in range(num_versions):
        for task in stream.lease("arena", 100):
            buffer.add([encode(played(task, version, OUTCOMES[task.number % 3]))])
        assert stream.take() is not None
        stream.advance({"policy": version + 1})
    cursor = json.loads(json.dumps(stream.cursor()))
    for task in stream.lease("arena", 2):
        buffer.add([encode(played(task, num_versions))])
    return buffer, cursor


def restarted(folder: Path, cursor: dict[str, Any]) -> tuple[ReplayBuffer, GameStream, list[int]]:
    """A buffer made anew, its stream, and the games that it read."""
    read: list[int] = []

    class Recording(ReplayBuffer):
        def _recorded(self, *arguments: Any) -> Any:
            for place, head, data in super()._recorded(*arguments):
                read.append(head.number)
                yield place, head, data

    buffer, stream = Recording(str(folder)), stream_of(**CONFIG)
    buffer.open_stream(stream, cursor)
    return buffer, stream, read


def test_a_restart_reads_what_is_not_finished_and_knows_the_rest(tmp_path: Path) -> None:
    former, cursor = a_run(tmp_path, 20)
    buffer, stream, read = restarted(tmp_path, cursor)
    whole_buffer, whole, every = restarted(tmp_path, {**cursor, "log": None})
    assert len(every) == len(list(read_records(tmp_path / "stream.log"))) > 80
    assert len(read) <= MOST_READ, "the games that wait, and those written since"
    assert read == every[-len(read) :]
    assert buffer.count(STAGE) == whole_buffer.count(STAGE) == former.count(STAGE)
    assert stream.cursor() | {"log": None} == whole.cursor() | {"log": None}
    assert stream._win_rates == whole._win_rates
    assert numbers(stream.take()) == numbers(whole.take())
    assert stream.cursor()["log"] == whole.cursor()["log"], "the marks too"


def test_the_mark_of_a_restarted_stream_moves_on(tmp_path: Path) -> None:
    _, cursor = a_run(tmp_path, 10)
    for _ in range(5):
        buffer, stream, read = restarted(tmp_path, cursor)
        assert len(read) <= MOST_READ
        version = stream.cursor()["versions"]["policy"]
        for task in stream.lease("arena", 100):
            buffer.add([encode(played(task, version))])
        assert stream.take() is not None
        stream.advance({"policy": version + 1})
        cursor = json.loads(json.dumps(stream.cursor()))
    mark = LogMark.from_cursor(cursor)
    assert mark is not None
    assert mark.place.segment >= 2


def test_a_stream_that_is_opened_again_and_again_counts_each_game_once(tmp_path: Path) -> None:
    """With a mark and without one, in the same buffer and in a new one; here nothing waits, so the mark is the end."""
    config = {"games_per_version": 4, "max_lag": 0}
    buffer, stream = ReplayBuffer(str(tmp_path)), stream_of(**config)
    buffer.open_stream(stream, None)
    for task in stream.lease("arena", 4):
        buffer.add([encode(played(task))])
    assert stream.take() is not None
    stream.advance({"policy": 1})
    for cursor in (None, stream.cursor(), {**stream.cursor(), "log": None}):
        for opened in (buffer, ReplayBuffer(str(tmp_path))):
            for _ in range(2):
                stream = stream_of(**config)
                opened.open_stream(stream, cursor)
                assert opened.count(STAGE).num_games == 4
                cursor = cursor and stream.cursor()


def test_an_episode_that_is_in_the_log_twice_is_where_it_was_first(tmp_path: Path) -> None:
    first, second = (encode(played(task)) for task in stream_of(**CONFIG).lease("arena", 2))
    EpisodeLog(tmp_path / "stream.log").append(first, second, first)
    cursor = None
    for _ in range(3):
        stream = stream_of(**CONFIG)
        ReplayBuffer(str(tmp_path)).open_stream(stream, cursor)
        cursor = stream.cursor()
        assert stream.counts().waiting == 2, "the mark is not beyond one of them"


def test_an_episode_that_is_finished_and_in_the_log_once_more_is_passed_over(tmp_path: Path) -> None:
    _, cursor = a_run(tmp_path, 4)
    first = next(iter(read_records(tmp_path / "stream.log")))
    before = restarted(tmp_path, cursor)[1].counts()
    EpisodeLog(tmp_path / "stream.log", segment_bytes=2000).append(first)
    _, stream, read = restarted(tmp_path, cursor)
    assert read[-1] == 0
    assert stream.counts() == before


def test_the_mark_of_a_log_that_was_set_aside_is_not_that_of_the_next(tmp_path: Path) -> None:
    buffer, stream = ReplayBuffer(str(tmp_path)), stream_of(**CONFIG)
    buffer.open_stream(stream, None)
    tasks = stream.lease("arena", 2)
    buffer.add([encode(played(tasks[0]))])
    log = tmp_path / "stream.log"
    log.rename(tmp_path / "aside")
    buffer.reread()
    buffer.add([encode(played(tasks[1]))])
    assert stream.cursor()["log"]["identity"] == log_identity(log) != log_identity(tmp_path / "aside")


@pytest.mark.parametrize("harm", ["another log", "shorter", "gone"])
def test_a_mark_of_a_log_that_is_not_this_one_is_not_used(tmp_path: Path, harm: str) -> None:
    _, cursor = a_run(tmp_path, 12)
    log = tmp_path / "stream.log"
    if harm == "another log":
        first, *others = read_records(log)
        for path in tmp_path.glob("stream*.log"):
            path.unlink()
        EpisodeLog(log).append(*others, first)
    elif harm == "shorter":
        for path in list(tmp_path.glob("stream.*.log")):
            path.unlink()
    else:
        for path in tmp_path.glob("stream*.log"):
            path.unlink()
    left = sum(1 for _ in read_records(log))
    buffer, _, read = restarted(tmp_path, cursor)
    assert len(read) == left == buffer.count(STAGE).num_games


def test_a_cursor_of_version_0_1_has_no_mark_and_all_is_read(tmp_path: Path) -> None:
    _, cursor = a_run(tmp_path, 6)
    del cursor["log"]
    _, stream, read = restarted(tmp_path, cursor)
    assert len(read) == len(list(read_records(tmp_path / "stream.log")))
    assert stream.counts().waiting > 0


def whole_places(records: list[bytes]) -> list[LogPlace]:
    """Of records in one segment, each with a head of 12 bytes."""
    return [LogPlace(0, offset) for offset in itertools.accumulate((12 + len(r) for r in records[:-1]), initial=0)]


def test_records_have_places(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    assert log_identity(path) is None
    assert holds(path, LogPlace(0, 0)) is False
    log = EpisodeLog(path, segment_bytes=100)
    records = [bytes([n]) * 30 for n in range(9)]
    places = [place for n in range(0, 9, 3) for place in log.append(*records[n : n + 3])]
    assert list(read_records_from(path)) == list(zip(places, records, strict=True))
    assert log.end == places[-1].after(records[-1])
    for n, place in enumerate(places):
        assert [data for _, data in read_records_from(path, place)] == records[n:]
        assert holds(path, place)
    assert list(read_records_from(path, log.end)) == []
    whole = EpisodeLog(tmp_path / "whole.log")
    assert [place for record in records for place in whole.append(record)] == whole_places(records)
    assert holds(path, log.end)
    assert not holds(path, LogPlace(log.end.segment, log.end.offset + 1))
    assert not holds(path, LogPlace(log.end.segment + 1, 0))


def test_a_mark_in_a_cursor_is_the_mark() -> None:
    ends = [EndReason.SAID_WORD, EndReason.WRONG_GUESS, EndReason.WRONG_GUESS, EndReason.UNDECIDED]
    mark = LogMark(LogPlace(2, 30), 7)
    for number, reason in enumerate(ends):
        episode = game(2 * number, Outcome.TIED if reason is EndReason.UNDECIDED else Outcome.ATTACKER_WINS, 3)
        mark.add(replace(episode, verdict=replace(episode.verdict, end_reason=reason)))
    assert (mark.count.num_games, mark.count.num_turns, mark.count.num_tokens) == (4, 12, 24)
    found = LogMark.from_cursor({"log": json.loads(json.dumps(mark.as_json()))})
    assert found is not None
    assert (found.place, found.identity, found.rates, found.count) == (mark.place, 7, mark.rates, mark.count)
    assert [number in found.seen for number in range(8)] == [True, False] * 4
    assert (found.seen.end, found.seen.missing(), len(found.seen)) == (7, [1, 3, 5], 4)
    assert LogTail(found).advance(lambda number: True).place == mark.place, "nothing was read after it"
    assert (Numbers(3).end, Numbers(3).missing(), Numbers().end) == (3, [], 0)
    mark.identity = None
    assert LogMark.from_cursor({"log": mark.as_json()}) is None, "nothing was written yet"


def test_win_rates_move_by_a_fiftieth_and_a_rare_win_is_the_greater_surprise() -> None:
    rates = WinRates()
    assert rates.surprise(game(0, Outcome.ATTACKER_WINS)) == 0.5
    assert rates.rates == {Role.ATTACKER: pytest.approx(0.51), Role.DEFENDER: pytest.approx(0.49)}
    assert rates.surprise(game(0, Outcome.TIED)) == 0
    assert rates.surprise(game(0, Outcome.DEFENDER_WINS)) == pytest.approx(0.51)

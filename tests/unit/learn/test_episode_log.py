"""What a crash or a disk may leave of an episode log, and what is read from it then."""

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cluster.buffer.replay_buffer import ReplayBuffer
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import EpisodeLog, LogFaults, read_log, read_records, segments
from spag_ray.episodes.wire import encode
from spag_ray.errors import RunFolderError
from spag_ray.game.rules import EndReason, Outcome, Role, Verdict
from spag_ray.game.turn import Turn


def record(number: int, stage: str = "s") -> bytes:
    turn = Turn(Role.ATTACKER, f"turn {number}", (1, 2, 3), (4, 5), (-0.5, -0.25), "policy", 1, 1)
    verdict = Verdict(Outcome.TIED, EndReason.UNDECIDED, 1, "time is up", None, None)
    return encode(Episode(f"{stage}/{number}", number, stage, "river", 2, "strict", 1.0, (turn,), verdict))


def written(path: Path, count: int, segment_bytes: int = 2**20) -> bytes:
    log = EpisodeLog(path, segment_bytes)
    for number in range(count):
        log.append(record(number))
    log.close()
    return path.read_bytes()


def numbers(path: Path, faults: LogFaults | None = None) -> list[int]:
    return [episode.number for episode in read_log(path, faults)]


def test_a_torn_tail_is_cut_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.log"
    whole = written(path, 3)
    path.write_bytes(whole[:-5])
    assert numbers(path) == [0, 1]
    log = EpisodeLog(path)
    assert log.faults.torn_bytes == len(whole) // 3 - 5
    assert "a torn tail of" in caplog.text
    log.append(record(7))
    assert numbers(path) == [0, 1, 7]


def test_zeros_after_a_mark_are_no_record(tmp_path: Path) -> None:
    """What a disk may have of a record after a power loss: a length and a checksum of 0 would fit an empty one."""
    path = tmp_path / "a.log"
    whole = written(path, 2)
    half = len(whole) // 2
    path.write_bytes(whole[: half + 4] + bytes(half - 4))
    log = EpisodeLog(path)
    assert log.faults.torn_bytes == half
    log.append(record(7))
    log.close()
    assert numbers(path) == [0, 7]


def test_a_damaged_record_within_is_skipped_counted_and_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "a.log"
    whole = bytearray(written(path, 5))
    size = len(whole) // 5
    whole[size + 20] ^= 0xFF  # contents of record 1
    whole[3 * size + 5] ^= 0xFF  # length of record 3
    path.write_bytes(whole)
    faults = LogFaults()
    assert numbers(path, faults) == [0, 2, 4]
    assert (faults.num_gaps, faults.gap_bytes, faults.torn_bytes) == (2, 2 * size, 0)
    assert "2 damaged places" in caplog.text
    log = EpisodeLog(path)
    log.append(record(9))
    assert numbers(path) == [0, 2, 4, 9], "opening to write cuts nothing that has whole records after it"


def test_segments_rotate_and_are_read_as_one(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    written(path, 10, segment_bytes=300)
    assert len(segments(path)) > 2
    assert numbers(path) == list(range(10))
    again = EpisodeLog(path, segment_bytes=300)
    again.append(record(10))
    again.close()
    assert numbers(path) == list(range(11))
    middle = segments(path)[1]
    middle.write_bytes(middle.read_bytes()[:-1])
    faults = LogFaults()
    assert len(numbers(path, faults)) == 10, "a segment's end is not the log's"
    assert faults.torn_bytes > 0, "a segment's end is not the log's"


def test_a_segment_that_is_full_to_the_byte_gets_no_more(tmp_path: Path) -> None:
    size = len(written(tmp_path / "one.log", 1))
    for number, records in ((2 * size, [2, 2]), (2 * size + 1, [3, 1])):
        path = tmp_path / f"{number}.log"
        written(path, 4, segment_bytes=number)
        assert [each.stat().st_size // size for each in segments(path)] == records


def test_a_segment_that_cannot_be_begun_is_begun_by_the_next_record(tmp_path: Path) -> None:
    path = tmp_path / "x.log"
    log = EpisodeLog(path, segment_bytes=1)
    log.append(record(0))
    (tmp_path / "x.1.log").mkdir()
    with pytest.raises(OSError, match="Is a directory"):
        log.append(record(1))
    (tmp_path / "x.1.log").rmdir()
    log.append(record(2))
    assert numbers(path) == [0, 2]


def test_a_record_may_be_as_long_as_a_record_may_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "a.log"
    EpisodeLog(path).append(b"x" * 30, b"y" * 31, b"z" * 30)
    monkeypatch.setattr("spag_ray.episodes.log.MAX_RECORD_BYTES", 30)
    assert list(read_records(path)) == [b"x" * 30, b"z" * 30]


def test_faults_are_added_up_and_named_each_by_its_kind(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    written(path, 4, segment_bytes=1)
    size = path.stat().st_size
    for segment, cut in ((path, 5), (tmp_path / "a.2.log", 7)):
        segment.write_bytes(segment.read_bytes()[:-cut])
    gap = tmp_path / "a.1.log"
    gap.write_bytes(b"noise" + gap.read_bytes())
    faults = LogFaults()
    assert numbers(path, faults) == [1, 3]
    assert faults == LogFaults(num_gaps=1, gap_bytes=5, torn_bytes=2 * size - 12)
    assert str(faults) == f"1 damaged places (5 bytes) skipped, a torn tail of {2 * size - 12} bytes cut"
    assert LogFaults(num_gaps=1)
    assert not LogFaults(gap_bytes=1)


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_whatever_is_overwritten_every_record_not_touched_is_read(tmp_path: Path, data: st.DataObject) -> None:
    path = tmp_path / "x.log"
    path.unlink(missing_ok=True)
    whole = bytearray(written(path, 6))
    size = len(whole) // 6
    begin = data.draw(st.integers(0, len(whole) - 1))
    noise = data.draw(st.binary(min_size=1, max_size=2 * size))[: len(whole) - begin]
    whole[begin : begin + len(noise)] = noise
    path.write_bytes(whole)
    touched = set(range(begin // size, (begin + len(noise) - 1) // size + 1))
    found = numbers(path)
    assert set(found) >= set(range(6)) - touched
    assert found == sorted(found)


def test_a_full_disk_leaves_whole_records_and_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ReplayBuffer(str(tmp_path))
    buffer.add([record(0)])
    room = 100
    write = os.write

    def write_some(descriptor: int, data: Any) -> int:
        nonlocal room
        if room == 0:
            raise OSError(errno.ENOSPC, "No space left on device")
        taken = min(room, len(data))
        room -= taken
        return write(descriptor, data[:taken])

    monkeypatch.setattr(os, "write", write_some)
    with pytest.raises(RunFolderError, match="No space left on device"):
        buffer.write({"s": {1: record(1)}})
    monkeypatch.undo()
    assert numbers(tmp_path / "s.log") == [0]
    buffer.write({"s": {2: record(2)}})
    faults = LogFaults()
    assert numbers(tmp_path / "s.log", faults) == [0, 2]
    assert not faults


def test_a_log_is_read_one_record_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    written(path, 3)
    reading = read_records(path)
    next(reading)
    with path.open("r+b") as file:
        file.seek(-3, os.SEEK_END)
        file.write(b"\0\0\0")
    assert len(list(reading)) == 1, "the last record was not read before it was asked for"

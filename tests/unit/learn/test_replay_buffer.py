"""The replay buffer: whole stages in the order of their games, what is damaged in their logs, what it is asked for."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.buffer.replay_buffer import ReplayBuffer
from spag_ray.episodes.log import read_log
from spag_ray.episodes.wire import decode, encode
from spag_ray.errors import InputError
from spag_ray.game.rules import Outcome
from tests.support.episodes import game
from tests.support.streams import played, stream_of


def test_the_buffer_gives_a_stage_back_in_order_and_keeps_a_repeated_episode_once(tmp_path: Path) -> None:
    buffer = ReplayBuffer(str(tmp_path))
    records = [encode(game(number, Outcome.TIED)) for number in (2, 0, 1)]
    assert buffer.add(records) == 3
    assert buffer.add(records[:1]) == 0
    assert buffer.count("s").outcomes == {Outcome.TIED: 3}
    assert buffer.count("other").num_games == 0
    assert [decode(data).number for data in buffer.take("s")] == [0, 1, 2]
    assert sorted(buffer.take("s")) == sorted(records), "asked again, the same: from the log"
    assert buffer.count("s").num_games == 3
    assert [episode.number for episode in read_log(tmp_path / "s.log")] == [2, 0, 1]


def test_the_log_of_a_stage_that_was_taken_is_closed_and_takes_what_comes_late(tmp_path: Path) -> None:
    """Once a long run, with several matches a round, ran out of file descriptors."""
    buffer, before = ReplayBuffer(str(tmp_path)), len(os.listdir("/proc/self/fd"))
    for number in range(20):
        buffer.add([encode(replace(game(0, Outcome.TIED), stage=f"spag-{number}"))])
        assert len(buffer.take(f"spag-{number}")) == 1
    assert len(os.listdir("/proc/self/fd")) == before
    assert buffer.add([encode(replace(game(number, Outcome.TIED), stage="spag-0")) for number in range(2)]) == 1
    assert [episode.number for episode in read_log(tmp_path / "spag-0.log")] == [0, 1]
    assert len(buffer.take("spag-0")) == 2


def test_a_buffer_says_what_was_damaged_in_what_it_has_read(tmp_path: Path) -> None:
    records = [encode(game(number, Outcome.TIED)) for number in range(3)]
    ReplayBuffer(str(tmp_path)).add(records)
    log = tmp_path / "s.log"
    log.write_bytes(log.read_bytes()[:-5])
    buffer = ReplayBuffer(str(tmp_path))
    assert list(buffer.played("s")) == [0, 1]
    assert buffer.damage["s"].startswith("a torn tail of")


def test_a_sample_counts_by_phase_what_came_and_what_waits(tmp_path: Path) -> None:
    buffer = ReplayBuffer(str(tmp_path))
    assert (buffer.sample().waiting, buffer.sample().oldest_s) == (0, 0.0)
    buffer.add([encode(replace(game(number, Outcome.TIED), stage="spag-1")) for number in range(2)])
    sample = buffer.sample()
    assert sample.waiting == 2
    assert sample.oldest_s > 0
    assert sample.stream is None
    assert {phase: count.num_games for phase, count in sample.played.items()} == {("self_play", "taboo"): 2}
    buffer.take("spag-1")
    assert buffer.sample().waiting == 0
    assert buffer.sample().played == sample.played


def test_how_long_episodes_wait_is_that_of_the_oldest_of_all_stages(tmp_path: Path) -> None:
    buffer, stream = ReplayBuffer(str(tmp_path)), stream_of(games_per_version=4, max_lag=0)
    buffer.open_stream(stream, None)
    tasks = stream.lease("arena", 2)
    buffer.add([encode(game(0, Outcome.TIED))])
    time.sleep(0.02)
    began = time.monotonic()
    buffer.add([encode(game(1, Outcome.TIED)), encode(played(tasks[0]))])
    time.sleep(0.02)
    ended = time.monotonic()
    buffer.add([encode(played(tasks[1])), encode(replace(game(0, Outcome.TIED), stage="other"))])
    now = time.monotonic()
    assert buffer.sample().oldest_s > now - began, "the first of its stage"
    buffer.take("s")
    assert 0.02 <= buffer.sample().oldest_s <= time.monotonic() - began, "the first of the stream"
    buffer.stream = None
    assert buffer.sample().oldest_s <= time.monotonic() - ended


def test_the_lease_is_looked_at_itself_before_a_log_is_opened_and_at_times_before_each_write(tmp_path: Path) -> None:
    """Opening a log cuts off a torn end, which may be what another run is writing."""
    checked: list[bool] = []

    class Lease:
        def check(self, now: bool = False) -> None:
            checked.append(now)

    lease: Any = Lease()
    buffer = ReplayBuffer(str(tmp_path), lease)
    for number in range(2):
        buffer.add([encode(game(number, Outcome.TIED))])
    assert checked == [False, True, False]


@pytest.mark.parametrize("stage", ["../out", "", "a/b", ".hidden", "a\0b"])
def test_a_stage_whose_name_is_no_file_name_is_refused(stage: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="a stage is a file name"):
        ReplayBuffer(str(tmp_path / "logs")).add([encode(replace(game(0, Outcome.TIED), stage=stage))])
    assert list(tmp_path.iterdir()) == []

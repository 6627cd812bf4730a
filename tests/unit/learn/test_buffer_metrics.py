"""Lines of metrics.jsonl about the buffer: seldom, and those about games only when there are new ones."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cluster.buffer import buffer_actor
from cluster.buffer.buffer_actor import Buffer
from cluster.buffer.buffer_metrics import BufferMetrics
from cluster.buffer.replay_buffer import ReplayBuffer
from cluster.tracking.recorder import Recorder
from spag_ray.episodes.wire import encode
from spag_ray.game.rules import Outcome
from tests.support.episodes import game
from tests.support.runs import records_of
from tests.support.streams import finish, here, stream_of


@pytest.fixture
def buffer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ReplayBuffer:
    """One in this process, whose answers need no fetching."""
    monkeypatch.setattr(buffer_actor, "get", lambda answer, timeout_s: answer)
    return ReplayBuffer(str(tmp_path / "logs"))


def sampler_of(buffer: ReplayBuffer, folder: Path) -> BufferMetrics:
    handle: Any = here(buffer)
    return BufferMetrics(Buffer(handle, folder, 1.0), Recorder(folder), max_lag=1)


def test_it_looks_once_in_a_while_and_now_where_it_has_to(buffer: ReplayBuffer, tmp_path: Path) -> None:
    look = sampler_of(buffer, tmp_path).sample
    look()
    look()
    assert len(records_of(tmp_path, "buffer")) == 1
    look(now=True)
    assert len(records_of(tmp_path, "buffer")) == 2


def test_games_are_written_down_when_there_are_new_ones(buffer: ReplayBuffer, tmp_path: Path) -> None:
    look = sampler_of(buffer, tmp_path).sample
    buffer.add([encode(replace(game(0, Outcome.ATTACKER_WINS), stage="spag-1"))])
    look(now=True)
    look(now=True)
    buffer.add([encode(replace(game(number, Outcome.TIED), stage="spag-2")) for number in range(2)])
    look(now=True)
    lines = records_of(tmp_path, "games")
    assert [(line["phase"], line["turns"]) for line in lines] == [("self_play", 4), ("self_play", 12)]
    assert [line["waiting"] for line in records_of(tmp_path, "buffer")] == [1, 1, 3]


def test_a_streams_permits_and_ages_are_in_the_line(buffer: ReplayBuffer, tmp_path: Path) -> None:
    stream = stream_of(games_per_version=2, max_lag=1)
    buffer.open_stream(stream, None)
    for task in stream.lease("arena-0", 2):
        finish(stream, task)
    stream.take()
    sampler_of(buffer, tmp_path).sample()
    (line,) = records_of(tmp_path, "buffer")
    assert (line["begun"], line["lost"], line["lag_0"], line["lag_1"]) == (2, 0, 2, 0)


def test_each_game_has_a_line_of_its_own(buffer: ReplayBuffer, tmp_path: Path) -> None:
    handle: Any = here(buffer)
    look = BufferMetrics(Buffer(handle, tmp_path, 1.0), Recorder(tmp_path), max_lag=1).sample
    games = [replace(game(number, Outcome.TIED), stage="spag-1") for number in range(3)]
    buffer.add([encode(replace(each, game="kuhn" if each.number else "taboo")) for each in games])
    look(now=True)
    look(now=True)
    assert [(line["game"], line["turns"]) for line in records_of(tmp_path, "games")] == [("taboo", 4), ("kuhn", 8)]

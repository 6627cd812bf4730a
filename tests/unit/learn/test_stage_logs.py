"""Files of a stage's games: segments lead back to their stage."""

from pathlib import Path

import pytest

from spag_ray.episodes.log import EpisodeLog, LogFaults, read_stage, segment_path, stage_logs, stage_of
from spag_ray.episodes.wire import encode
from spag_ray.game.rules import Outcome
from spag_ray.stages import Stage
from tests.support.episodes import game

MATCH = Stage.match("spag-2", "imitated")


@pytest.mark.parametrize("stage", [Stage.of_round(3), Stage.parse("stream"), MATCH, Stage.match("qwen2", "qwen2.5")])
def test_a_segment_leads_back_to_its_stage(stage: Stage) -> None:
    assert [stage_of(segment_path(Path(f"{stage}.log"), number)) for number in (0, 1, 12)] == [stage] * 3


def test_the_games_of_all_segments_are_read_and_what_is_no_game_is_counted(tmp_path: Path) -> None:
    log = EpisodeLog(tmp_path / "spag-10.log", segment_bytes=1)  # a segment for each record
    log.append(encode(game(0, Outcome.TIED)))
    log.append(b"no episode")
    log.append(encode(game(1, Outcome.TIED)))
    log.close()
    (tmp_path / "spag-10.2.log").write_bytes((tmp_path / "spag-10.2.log").read_bytes() + b"torn")
    (tmp_path / "spag-9.log").touch()
    (tmp_path / "spag-9.log.given-up-3").touch()
    assert list(stage_logs(tmp_path)) == ["spag-9", "spag-10"]
    faults = LogFaults()
    found = [(place, episode.number) for place, episode in read_stage(tmp_path / "spag-10.log", faults)]
    assert found == [(0, 0), (2, 1)]
    assert str(faults) == "a torn tail of 4 bytes cut, 1 records are not episodes of this version"
    assert not LogFaults()

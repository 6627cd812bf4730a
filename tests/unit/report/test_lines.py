"""Lines of metrics.jsonl: what is written is read as the same type again, and older lines are read."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from spag_ray.results.lines import (
    LINES,
    BufferLine,
    EngineLostLine,
    EvaluationLine,
    GamesLine,
    Line,
    StepLine,
    SyncLine,
    SyncReport,
    parse_line,
)
from spag_ray.results.metric_lines import MetricLines

GOLDEN = Path(__file__).resolve().parents[2] / "golden" / "run_folders"


@pytest.mark.parametrize("run", ["rounds", "stream"])
def test_lines_of_a_run_are_written_again_as_they_were(run: str) -> None:
    kinds = set()
    for line in MetricLines(GOLDEN / run / "metrics.jsonl").new():
        found = parse_line(line)
        assert found is not None, line
        assert not found.unknown, line
        again = {"time": line["time"], "kind": found.kind, **found.values()}
        assert json.dumps(again) == json.dumps(line)
        kinds.add(found.kind)
    assert {"step", "sync", "play", "games", "buffer", "checkpoint"} <= kinds


def test_what_another_version_wrote_besides_is_kept() -> None:
    line = {"time": 1.0, "kind": "sync", "policy": "policy", "version": 3, "seconds": 0.5, "colour": "green"}
    found = parse_line(line)
    assert isinstance(found, SyncLine)
    assert found.report.version == 3
    assert found.unknown == {"colour": "green"}
    assert found.values()["colour"] == "green"


def test_lines_of_older_versions_lack_keys() -> None:
    step = parse_line({"time": 1.0, "kind": "step", "stage": "spag-1", "policy": "policy", "step": 4, "loss": 0.5})
    assert isinstance(step, StepLine)
    assert step.report.loss == 0.5
    assert math.isnan(step.report.entropy)
    lost = parse_line({"time": 1.0, "kind": "engine_lost", "engine": "engine-0"})
    assert lost == EngineLostLine("engine-0")
    assert lost.reason == "found dead"
    assert parse_line({"time": 1.0, "kind": "weather", "wind": 3}) is None


def test_a_line_without_what_makes_it_is_refused() -> None:
    with pytest.raises(TypeError, match="oldest_s"):
        parse_line({"time": 1.0, "kind": "buffer", "waiting": 3})
    with pytest.raises((TypeError, ValueError)):
        parse_line({"time": 1.0, "kind": "sync", "policy": "policy", "version": None, "seconds": 0.5})
    with pytest.raises((TypeError, ValueError)):
        parse_line({"time": 1.0, "kind": "buffer", "waiting": 3, "oldest_s": 1.0, "lag_many": 4})


@pytest.mark.parametrize(
    "odd",
    [
        {"policy": 7},
        {"policy": None},
        {"version": "3"},
        {"version": 3.5},
        {"version": True},
        {"version": float("inf")},
        {"version": 10**400},
        {"seconds": "0.5"},
        {"seconds": 1e308},
        {"num_bytes": []},
    ],
)
def test_a_value_of_another_type_or_beyond_any_measurement_is_refused(odd: dict[str, Any]) -> None:
    line = {"time": 1.0, "kind": "sync", "policy": "policy", "version": 3, "seconds": 0.5, "num_bytes": 100.0}
    assert parse_line(line) == SyncLine("policy", SyncReport(3, 0.5, num_bytes=100))
    with pytest.raises((TypeError, ValueError)):
        parse_line(line | odd)


def test_lines_that_are_not_what_their_kind_should_be_are_counted_as_damaged(tmp_path: Path) -> None:
    sync = {"time": 1.0, "kind": "sync", "policy": "policy", "version": 3, "seconds": 0.5}
    found = [{**sync, "version": None}, sync, {"time": 2.0, "kind": "weather"}, {"time": 3.0, "kind": "buffer"}]
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in found) + '{"ki\n')
    lines = MetricLines(path)
    assert list(lines.typed()) == [(1.0, SyncLine("policy", SyncReport(3, 0.5))), (2.0, None)]
    assert lines.num_damaged == 3


def test_null_is_a_number_that_was_not_finite_or_nothing_at_all() -> None:
    step = parse_line({"kind": "step", "stage": "spag-1", "policy": "policy", "step": 4, "gradient_norm": None})
    assert isinstance(step, StepLine)
    assert math.isnan(step.report.gradient_norm)
    buffer = parse_line({"kind": "buffer", "waiting": 3, "oldest_s": 1.0, "permits_free": None})
    assert buffer == BufferLine(3, 1.0)
    assert buffer.values() == {"waiting": 3, "oldest_s": 1.0}


def test_mappings_stand_in_the_line_itself() -> None:
    line = GamesLine("self_play", "taboo", 12, 240, {"attacker win: wrong guess": 2})
    assert line.values() == {"phase": "self_play", "game": "taboo", "turns": 12, "tokens": 240} | {
        "attacker win: wrong guess": 2
    }
    evaluation = {"policy": "policy", "stage": "spag-1", "task": "arc_easy", "metric": "acc", "value": 0.5}
    found = parse_line({"kind": "evaluation", **evaluation, "num_samples": 4, "num_fewshot": 0})
    assert isinstance(found, EvaluationLine)
    assert found.row.stderr is None
    assert "stderr" not in found.values()


def test_every_type_of_line_has_a_kind_of_its_own() -> None:
    assert len(LINES) == len(Line.__subclasses__())
    assert all(line.kind == kind for kind, line in LINES.items())


def test_a_games_own_reasons_are_ends_of_games() -> None:
    ends = {
        "attacker win: showdown after a call": 3,
        "defender breach: illegal action": 2,
        "none tie: a draw: agreed": 1,
    }
    line = GamesLine("self_play", "taboo", 12, 24, ends)
    assert parse_line({"kind": "games", **line.values()}) == line


def test_what_is_no_end_of_a_game_is_not_counted_as_one() -> None:
    odd = {"mood": "calm", "nobody win: it": 3, "attacker win": 4, "my attacker win: it": 5}
    values = {"phase": "self_play", "game": "taboo", "turns": 4, "tokens": 9, "attacker win: wrong guess": 2, **odd}
    found = parse_line({"kind": "games", **values})
    assert isinstance(found, GamesLine)
    assert found.ends == {"attacker win: wrong guess": 2}
    assert found.unknown == odd
    assert found.values() == values

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spag_ray.results.report.run_curves import RunCurves, Thinned
from tests.support.report_runs import measurements, write_metrics


def test_curves_have_steps_and_running_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_metrics(path, measurements())
    curves = RunCurves(path)
    curves.read()
    axis, steps, seconds, losses = curves.as_json()["step/loss/self_play"]
    assert axis == "optimiser_step"
    assert steps == [7, 8, 9, 10, 11, 12], "counted through all stages"
    assert seconds == [34, 36, 38, 40, 42, 44]
    assert losses == [2, 1.9, 1.8, 1.7, 1.6, 1.5]
    assert curves.as_json()["sync/seconds"][:2] == ["version", [1, 2]]
    json.dumps(curves.as_json(), allow_nan=False)


def test_a_number_of_hundreds_of_digits_in_a_field_of_another_version_is_no_point(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_metrics(path, [{"time": 1.0, "kind": "buffer", "waiting": 2, "oldest_s": 0.5, "later": 10**400}])
    curves = RunCurves(path)
    curves.read()
    assert curves.names == ["buffer/oldest_s", "buffer/waiting"]


def test_lines_are_read_as_they_come_and_a_pause_takes_no_time(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    lines = measurements()
    write_metrics(path, lines)
    curves = RunCurves(path)
    curves.read()
    before = curves.num_points
    curves.read()
    assert curves.num_points == before
    later = lines[-2] | {"time": lines[-2]["time"] + 10_000, "step": 7, "loss": 9.0}
    resumed = {"time": later["time"] - 2, "kind": "resumed", "stage": "spag-1", "checkpoint": "x", "version": 1}
    with path.open("a") as file:
        file.writelines(json.dumps(line) + "\n" for line in (resumed, later))
        file.write('{"time": 1')  # the next line is being written
    curves.read()
    assert curves.num_points > before
    _, steps, seconds, losses = curves.as_json()["step/loss/self_play"]
    assert (steps[-1], losses[-1]) == (13, 9)
    assert seconds[-1] == 47, "one second after the sync, and two after the resume"


def test_a_long_curve_is_thinned(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_metrics(path, measurements(num_steps=5000))
    curves = RunCurves(path)
    curves.read()
    _, steps, _, losses = curves.as_json()["step/loss/self_play"]
    assert 500 <= len(steps) == len(losses) <= 1000


def test_a_run_that_begins_anew_in_its_folder_has_its_own_curves(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_metrics(path, measurements())
    curves = RunCurves(path)
    curves.read()
    before = curves.num_points
    write_metrics(tmp_path / "new", measurements()[:2])
    (tmp_path / "new").replace(path)
    curves.read()
    assert curves.num_points != before, "what tells a page to draw them again"
    found = RunCurves(path)
    found.read()
    assert curves.as_json() == found.as_json()
    assert "step/loss/self_play" not in curves.names


@given(st.integers(1, 5), st.integers(0, 200))
def test_a_curve_stays_short_and_in_order(limit: int, num_rows: int) -> None:
    found = points(limit, num_rows)
    assert len(found) <= 2 * limit
    assert found == sorted(found)
    assert bool(found) == bool(num_rows)


@given(st.integers(1, 5), st.integers(0, 6))
def test_every_row_counts_once(limit: int, doublings: int) -> None:
    num_rows = limit * 2**doublings
    found = points(limit, num_rows)
    assert sum(found) / len(found) == pytest.approx((num_rows - 1) / 2)


def points(limit: int, num_rows: int) -> list[float]:
    curve = Thinned(limit)
    for x in range(num_rows):
        curve.add((float(x),))
    assert curve.num_added == num_rows
    return [x for (x,) in curve.rows() if x is not None]


def test_few_rows_stay_as_they_are_and_what_is_missing_stays_missing() -> None:
    curve = Thinned(limit=2)
    rows: list[tuple[float | None, ...]] = [(0.0, None), (1.0, 5.0), (2.0, None)]
    for row in rows:
        curve.add(row)
    assert curve.rows() == rows

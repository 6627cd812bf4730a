"""What lines of metrics.jsonl become on the page: whatever they hold, times and tokens are those of the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spag_ray.errors import InputError
from spag_ray.results.evaluations import read_evaluations
from spag_ray.results.game_names import GameNames
from spag_ray.results.lines import IterationLine
from spag_ray.results.matches import read_matches
from spag_ray.results.report.measurements import read_measurements
from spag_ray.results.report.pace_figures import pace_figures
from spag_ray.results.report.packing import packed
from spag_ray.results.report.step_figures import LEARNING, MISMATCH, step_figures
from tests.support.report_runs import measurements, streamed, write_metrics


def test_numbers_without_an_end_are_damage(tmp_path: Path) -> None:
    path = tmp_path / "some.json"
    path.write_text('[{"attacker": "a", "defender": "b", "games": [["river", "tied game", 1e999]]}]')
    with pytest.raises(InputError, match="no matches can be read from it"):
        read_matches(path)
    row = (
        '"stage": "s", "task": "t", "metric": "m", "value": 0.5, "stderr": null, "num_samples": 1e999, "num_fewshot": 0'
    )
    path.write_text(f"[{{{row}}}]")
    with pytest.raises(InputError, match="no evaluations can be read from it"):
        read_evaluations(path)


anything = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3)


@settings(max_examples=100)
@given(st.lists(st.sampled_from([*measurements(2), *streamed()]), max_size=12), st.data())
def test_whatever_lines_hold_they_can_be_drawn(
    tmp_path_factory: pytest.TempPathFactory, lines: list[dict[str, Any]], data: st.DataObject
) -> None:
    found = [line | {data.draw(st.sampled_from(sorted(line))): data.draw(anything)} for line in lines]
    path = tmp_path_factory.mktemp("lines") / "metrics.jsonl"
    write_metrics(path, found)
    measured = read_measurements(path, max_lag=3)
    figures = [*step_figures(measured, (*LEARNING, *MISMATCH), GameNames()), *pace_figures(measured)]
    assert packed([figure.as_json() for figure in figures])
    assert measured.clock.seconds >= 0


def test_a_line_that_is_not_what_it_should_be_changes_nothing_but_the_count(tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    write_metrics(path, measurements())
    whole = read_measurements(path)
    assert (whole.num_unreadable, whole.num_lines, whole.num_steps, whole.newest_version) == (0, 19, 12, 2)
    odd: dict[str, dict[str, Any]]
    odd = {"step": {"loss": "low"}, "games": {"tokens": 1e308}, "buffer": {"waiting": None}}
    found = []
    for line in measurements():
        found += [line, line | odd.get(line["kind"], {"version": 1e308})]
    write_metrics(path, found)
    measured = read_measurements(path)
    assert (measured.num_unreadable, measured.num_lines, measured.num_steps) == (19, 19, 12)
    assert measured.newest_version == 2
    assert measured.activity.rates == whole.activity.rates


def test_a_pause_before_a_resume_is_no_time_of_the_run(tmp_path: Path) -> None:
    lines = measurements()
    later = [{**line, "time": line["time"] + 40_000} for line in measurements()]
    resumed = {"time": later[0]["time"] - 1, "kind": "resumed", "stage": "spag-1"}
    resumed |= {"checkpoint": "spag-1-v1", "version": 2}
    write_metrics(tmp_path / "one.jsonl", lines)
    write_metrics(tmp_path / "two.jsonl", [*lines, resumed, *later])
    one, two = (read_measurements(tmp_path / f"{name}.jsonl") for name in ("one", "two"))
    assert two.clock.seconds == pytest.approx(2 * one.clock.seconds + 1)
    assert two.incidents == {"resumed": 1}
    assert two.num_steps == one.num_steps, "they were repeated"


def test_tokens_are_spread_over_the_time_in_which_they_came(tmp_path: Path) -> None:
    write_metrics(tmp_path / "m.jsonl", measurements())
    activity = read_measurements(tmp_path / "m.jsonl").activity
    for what, tokens in (("imitation", 400), ("self_play", 800), ("learned", 12 * 120)):
        assert sum(activity.rates[what]) * activity.bin_s == pytest.approx(tokens)


def test_an_iteration_is_drawn_once_with_what_occurred_in_it_and_the_rest(tmp_path: Path) -> None:
    kept = [
        IterationLine("spag-1", 2, 8, 10.0, generate_s=6.0, train_s=3.0, sync_s=0.5),
        IterationLine("spag-2", 3, 16, 12.0, generate_s=6.0, train_s=3.0, sync_s=0.5, evaluate_s=2.0),
    ]
    lines = [{"time": 100.0 + n, "kind": "iteration", **each.values()} for n, each in enumerate([*kept, kept[1]])]
    write_metrics(tmp_path / "metrics.jsonl", lines)
    (figure,) = pace_figures(read_measurements(tmp_path / "metrics.jsonl"))
    assert figure.title == "Where an iteration's time goes"
    bars = {trace["name"]: (trace["x"], trace["y"]) for trace in figure.data}
    assert bars["generate"] == ([2.0, 3.0], [6.0, 6.0]), "a resumed run repeated the second one"
    assert bars["evaluate"][1] == [0.0, 2.0]
    assert bars["other"][1] == [0.5, 0.5]
    assert figure.summary == "Of all iterations: generate 55%, train 27%, sync 5%, evaluate 9%, other 5%."
    assert {name for name, _ in figure.legend} == {"generate", "train", "sync", "evaluate", "other"}

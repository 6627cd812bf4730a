"""What lines of metrics.jsonl become on the page: whatever they hold, times and tokens are those of the run."""

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spag_ray.errors import InputError
from spag_ray.results.evaluations import read_evaluations
from spag_ray.results.game_names import GameNames
from spag_ray.results.lines import CollapseLine, IterationLine, StepLine, StepReport
from spag_ray.results.matches import read_matches
from spag_ray.results.report.measurements import read_measurements
from spag_ray.results.report.outcome_figures import title_of
from spag_ray.results.report.packing import packed
from spag_ray.results.report.training_figures import LEARNING, MISMATCH, pace_figures, step_figures
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


def test_after_a_resume_a_version_is_not_given_the_ages_of_the_whole_stream(tmp_path: Path) -> None:
    """The sums are then those of the checkpoint, which no line has."""
    resumed = {"time": 1.0, "kind": "resumed", "stage": "stream", "checkpoint": "c", "version": 2}

    def line(version: int, lag_0: int, lag_2: int) -> dict[str, Any]:
        return streamed()[0] | {"version": version, "lag_0": lag_0, "lag_1": 0, "lag_2": lag_2}

    lines = [line(1, 4, 0), line(2, 4, 4), line(3, 4, 8), resumed, line(3, 4, 4), line(4, 4, 8)]
    path = tmp_path / "metrics.jsonl"
    write_metrics(path, lines)
    rows = read_measurements(path, max_lag=2).lags.rows()
    assert rows == [(1, 1, 0, 0), (2, 0, 0, 1), (3, 0, 0, 1), (4, 0, 0, 1)]
    assert read_measurements(path, max_lag=-1).lags.rows() == [], "nobody knows what was too old"


def test_an_alarm_is_of_its_game(tmp_path: Path) -> None:
    line = CollapseLine("spag-2", "taboo: ties", True, 0.9, 0.1, 0.3, "spag-1", "warn", 0.0)
    write_metrics(tmp_path / "metrics.jsonl", [{"time": 1.0, "kind": "collapse", **line.values()}])
    measured = read_measurements(tmp_path / "metrics.jsonl")
    assert measured.alarmed("taboo: ") == {"spag-2"} == measured.alarmed()
    assert measured.alarmed("kuhn: ") == set()


def test_stages_of_two_policies_that_begin_at_other_steps_are_not_marked(tmp_path: Path) -> None:
    def steps(policy: str, each: int) -> list[dict[str, Any]]:
        return [
            {"time": 1.0, "kind": "step"}
            | StepLine(f"spag-{number}-{policy}", policy, StepReport(step, loss=0.5)).values()
            for number in (1, 2)
            for step in range(1, each + 1)
        ]

    path = tmp_path / "metrics.jsonl"
    for of_defender, marks in ((3, 1), (8, 2)):
        write_metrics(path, [*steps("attacker", 8), *steps("defender", of_defender)])
        figure = step_figures(read_measurements(path), LEARNING, GameNames())[0]
        assert len(figure.layout["shapes"]) == marks, "the first stage begins at the same step"


@pytest.mark.parametrize(
    ("stages", "title"),
    [
        (["visit"], "Games"),
        (["play"], "Games"),
        (["spag-1"], "Games for training"),
        (["expert", "spag-1"], "Games for training"),
    ],
)
def test_games_that_nobody_trains_on_are_not_said_to_be_for_training(stages: list[str], title: str) -> None:
    assert title_of(stages) == title


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
    assert (whole.num_unreadable, whole.clock.num_lines, whole.num_steps, whole.newest_version) == (0, 19, 12, 2)
    odd: dict[str, dict[str, Any]]
    odd = {"step": {"loss": "low"}, "games": {"tokens": 1e308}, "buffer": {"waiting": None}}
    found = []
    for line in measurements():
        found += [line, line | odd.get(line["kind"], {"version": 1e308})]
    write_metrics(path, found)
    measured = read_measurements(path)
    assert (measured.num_unreadable, measured.clock.num_lines, measured.num_steps) == (19, 19, 12)
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


def test_tokens_of_a_resumed_run_are_all_counted_however_many_there_were_before(tmp_path: Path) -> None:
    """Its sums start at 0 again, and its first line may have more than the last one before."""
    line = {"kind": "games", "phase": "evaluation", "game": "taboo", "turns": 40}
    before = line | {"time": 1e9, "tokens": 300, "none tie: undecided": 12}
    after = line | {"time": 1e9 + 60, "tokens": 500, "none tie: undecided": 4, "attacker win: wrong guess": 8}
    write_metrics(tmp_path / "m.jsonl", [before, after])
    activity = read_measurements(tmp_path / "m.jsonl").activity
    assert sum(activity.rates["evaluation"]) * activity.bin_s == pytest.approx(800)


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

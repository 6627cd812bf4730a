"""Exact measurements in the report: charts of the figures that there are, and all of them in the table."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from spag_ray.config.loading import parse_config, write_config
from spag_ray.results.lines import ExploitabilityLine
from tests.support.kuhn_runs import make_kuhn_run, measured, write_measured
from tests.support.kuhn_strategy import measure, optimum, uniform
from tests.support.report_page import page_of
from tests.support.report_runs import HOSTILE


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_kuhn_run(tmp_path / "a-run")


OTHER = "gone:Game"


def other_game(run: Path) -> None:
    write_config(run / "config.yaml", parse_config({"game": {"name": OTHER}, "imitation": {"enabled": False}}))


def rows_of(run: Path) -> dict[str, list[str]]:
    page_of(run)
    source = (run / "report.html").read_text(encoding="utf-8")
    table = source[source.index("Measured exactly, by stage</figcaption>") :].split("</table>")[0]
    cells = [re.findall(r"<t[hd][^>]*>([^<]*)", row) for row in table.split("<tr>")[1:]]
    return {name: values for name, *values in cells}


def test_nash_conv_is_a_curve_from_zero_below_uniform_play(run: Path) -> None:
    figure = page_of(run).unpacked("figures")["nash-conv"]
    own, legal, level = figure["data"]
    assert own["x"] == legal["x"] == level["x"] == ["base", "spag-1"]
    assert own["y"] == [pytest.approx(11 / 12, abs=1e-4), pytest.approx(0, abs=1e-9)]
    assert level["name"] == "uniform play"
    assert level["y"] == [pytest.approx(measure(uniform())["nash_conv"], abs=1e-4)] * 2
    assert level["line"]["dash"] == "dash"
    assert figure["layout"]["yaxis"]["rangemode"] == "tozero"
    assert "href=#solved" in page_of(run).links


def test_illegal_replies_and_bluffs_are_charts_in_per_cent(run: Path) -> None:
    often = {place: {action: 0.9 * share for action, share in each.items()} for place, each in uniform().items()}
    write_measured(run, measured("spag-1", 1, often))
    figures = page_of(run).unpacked("figures")
    mean, worst = figures["illegal"]["data"]
    assert mean["y"] == worst["y"] == [pytest.approx(10)]
    first, second, level = figures["bluffs"]["data"]
    assert first["y"] == second["y"] == [pytest.approx(50)]
    assert level["y"] == [pytest.approx(100 / 3, abs=0.01)]
    (band,) = figures["bluffs"]["layout"]["shapes"]
    assert (band["y0"], band["y1"]) == (0, pytest.approx(100 / 3))


def test_the_table_ends_with_uniform_play_and_the_optimum(run: Path) -> None:
    rows = rows_of(run)
    assert list(rows) == ["stage", "base", "spag-1", "uniform play", "optimum"]
    assert rows["stage"][:3] == ["nash conv", "legal nash conv", "value"]
    assert rows["base"] == rows["uniform play"], "the base plays uniformly here"
    known = dict(zip(rows["stage"], rows["optimum"], strict=True))
    assert (known["value"], known["bluffs"], known["second bluffs"]) == ("-0.056", "0.000 to 0.333", "0.333")
    for alpha in (0.0, 1 / 3):
        own = measure(optimum(alpha))
        assert f"{own['value']:.3f}" == known["value"]
        assert f"{own['bluffs']:.3f}" in known["bluffs"]


def test_a_stage_that_was_measured_again_counts_once(run: Path) -> None:
    write_measured(run, measured("spag-1", 1, uniform()), measured("spag-1", 1, optimum(0.2)))
    assert rows_of(run)["spag-1"][0] == "0.000"


def test_another_game_has_charts_of_the_figures_that_it_names_and_a_table_of_all(run: Path) -> None:
    other_game(run)
    write_measured(run, ExploitabilityLine("base", OTHER, 0, {}, {"nash_conv": 2.5, "regret": 7.0}))
    page = page_of(run)
    figures = page.unpacked("figures")
    assert [(trace["name"], trace["y"]) for trace in figures["nash-conv"]["data"]] == [("with illegal replies", [2.5])]
    assert not {"illegal", "bluffs"} & figures.keys()
    assert rows_of(run) == {"stage": ["nash conv", "regret"], "base": ["2.500", "7.000"]}


def test_a_game_without_these_figures_has_its_table_alone(run: Path) -> None:
    other_game(run)
    write_measured(
        run, ExploitabilityLine("base", OTHER, 0, {}, {"regret": 7.0}), ExploitabilityLine("spag-1", OTHER, 1, {}, {})
    )
    page = page_of(run)
    assert not {"nash-conv", "illegal", "bluffs"} & page.unpacked("figures").keys()
    assert rows_of(run) == {"stage": ["regret"], "base": ["7.000"], "spag-1": ["-"]}


def test_without_measurements_there_is_no_section(run: Path) -> None:
    write_measured(run)
    page = page_of(run)
    assert "How far from the optimum" not in page.text
    assert "href=#solved" not in page.links


def test_numbers_that_are_not_finite_are_gaps_and_names_stay_text(run: Path) -> None:
    line = measured("base", 0, uniform())
    odd = replace(line, figures={**line.figures, "nash_conv": math.nan, HOSTILE: math.inf, "huge": 1e100})
    write_measured(run, odd, replace(measured("spag-1", 1, optimum(0.2)), stage=HOSTILE))
    page = page_of(run)
    assert page.unpacked("figures")["nash-conv"]["data"][0]["y"][0] is None
    source = (run / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in source
    assert "<img" not in source

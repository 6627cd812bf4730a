"""A solved game: how far each stage's weights are from the optimum, exactly.

Names of figures are the game's own (`Solved.measure`). Those of a small game (game/game_tree.py) have charts in
any game that uses the same names; all are in the table.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from markupsafe import Markup

from spag_ray.game.game_tree import uniform
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.results.lines import ExploitabilityLine
from spag_ray.results.report.figure import SERIES, Figure, as_label, legend_of, line
from spag_ray.results.report.markup import NOTHING, paragraph, table
from spag_ray.stages import Stage

KUHN = "kuhn"
Measured: TypeAlias = Mapping[str, ExploitabilityLine]  # {stage: its newest measurement} of one game
_NOTES = {
    "nash_conv": "NashConv: what a best response gains against each seat, summed; 0 at the optimum.",
    "legal_nash_conv": "Legal: the NashConv of the same policy without its illegal replies.",
}


@dataclass(frozen=True)
class _Chart:
    """Figures that are drawn together: {name of the figure: name in the legend}."""

    name: str
    title: str
    figures: Mapping[str, str]
    note: str = ""
    is_share: bool = False


_CHARTS = (
    _Chart(
        "nash-conv",
        "NashConv",
        {"nash_conv": "with illegal replies", "legal_nash_conv": "legal replies alone"},
        "0 at the optimum",
    ),
    _Chart(
        "illegal",
        "Illegal replies",
        {"illegal": "mean over decisions", "worst_illegal": "worst decision"},
        "probability of an illegal reply",
        is_share=True,
    ),
)
_BLUFFS = _Chart(
    "bluffs",
    "Bets with the jack",
    {"bluffs": "first seat", "second_bluffs": "second seat, after a check"},
    "shaded: the first seat at the optimum",
    is_share=True,
)
# Every optimal policy of Kuhn poker (Kuhn, 1950): one number, or the lowest and the highest.
_OPTIMUM: dict[str, tuple[float, ...]] = {
    "nash_conv": (0.0,),
    "legal_nash_conv": (0.0,),
    "value": (-1 / 18,),
    "illegal": (0.0,),
    "worst_illegal": (0.0,),
    "bluffs": (0.0, 1 / 3),
    "second_bluffs": (1 / 3,),
}


def solved_figures(game: str, measured: Measured) -> list[Figure]:
    """Charts of the figures that are there, by stage; none if nothing was measured."""
    is_kuhn = game == KUHN
    found = [_figure(chart, measured, is_kuhn) for chart in (*_CHARTS, *([_BLUFFS] if is_kuhn else []))]
    return [figure for figure in found if figure is not None]


def solved_table(game: str, measured: Measured) -> Markup:
    """Every figure of every stage; nothing if nothing was measured. Of Kuhn poker also uniform play, and the
    optimum."""
    if not measured:
        return NOTHING
    names = list(dict.fromkeys(name for each in measured.values() for name in each.figures))
    rows = [[stage, *(_number(each.figures.get(name)) for name in names)] for stage, each in measured.items()]
    if game == KUHN:
        played = _uniform()
        rows.append(["uniform play", *(_number(played.get(name)) for name in names)])
        rows.append(["optimum", *(" to ".join(map(_number, _OPTIMUM.get(name, ()))) or "-" for name in names)])
    headings = ("stage", *(name.replace("_", " ") for name in names))
    notes = " ".join(note for name, note in _NOTES.items() if name in names)
    return table("Measured exactly, by stage", headings, rows) + (paragraph(notes, "note") if notes else NOTHING)


def _figure(chart: _Chart, measured: Measured, is_kuhn: bool) -> Figure | None:
    lines = list(measured.values())
    titles = [as_label(Stage.parse(each.stage).title) for each in lines]
    scale = 100 if chart.is_share else 1
    data, said = [], []
    for (name, label), colour in zip(chart.figures.items(), SERIES, strict=False):
        values = [_finite(each.figures.get(name), scale) for each in lines]
        if any(value is not None for value in values):
            data.append(line(range(len(lines)), values, label, colour) | {"x": titles, "mode": "lines+markers"})
            known = [(title, value) for title, value in zip(titles, values, strict=True) if value is not None]
            said.append(f"{label}: " + ", ".join(f"{title} {value:.3g}" for title, value in known))
    if not data:
        return None
    layout: dict[str, Any] = {
        "xaxis": {"type": "category", "showgrid": False},
        "yaxis": {"rangemode": "tozero", **({"ticksuffix": "%"} if chart.is_share else {})},
    }
    if is_kuhn and chart is _BLUFFS:
        layout["shapes"] = [_band(*(scale * end for end in _OPTIMUM["bluffs"]))]
        data.append(_level(titles, scale * _OPTIMUM["second_bluffs"][0], "the second seat at the optimum"))
    elif is_kuhn and "nash_conv" in chart.figures:
        data.append(_level(titles, _uniform()["nash_conv"], "uniform play"))
    return Figure(
        chart.name, chart.title, "; ".join(said), data=data, layout=layout, note=chart.note, legend=legend_of(data)
    )


def _band(low: float, high: float) -> dict[str, Any]:
    """A shade over the whole width of a chart, below its curves."""
    place = {"xref": "paper", "x0": 0, "x1": 1, "yref": "y", "y0": low, "y1": high}
    return {"type": "rect", **place, "layer": "below", "fillcolor": "--rule", "line": {"width": 0}}


def _level(titles: Sequence[str], height: float, name: str) -> dict[str, Any]:
    """A dashed line. It is a curve, so that the axis includes it."""
    found = line(range(len(titles)), [height] * len(titles), name, "--muted") | {"x": titles}
    found["line"] |= {"dash": "dash"}
    return found


def _uniform() -> Mapping[str, float]:
    """Of Kuhn poker alone: a report must not run the code of a user's own game."""
    game = KuhnPoker()
    return game.measure(uniform(game.decisions()))


def _finite(value: float | None, scale: float = 1.0) -> float | None:
    return scale * value if value is not None and math.isfinite(value) else None


def _number(value: float | None) -> str:
    return "-" if _finite(value) is None else f"{value:.3f}"

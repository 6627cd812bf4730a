"""A figure: plain data in the form that plotly.js reads.

A colour is the name of a variable in the page's style sheet (`--attacker`). The page replaces it by the value in its
current theme.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from spag_ray.results.report.run_curves import Row

SERIES = ("--series-1", "--series-2", "--series-3", "--series-4")
MOST_MARKS = 12
MARK = ": alarm"  # after the name of a stage that collapsed


@dataclass(frozen=True)
class Figure:
    """`title`, `note` and `legend` (name, colour) are shown with the figure. `summary` is for screen readers. `height`
    is in pixels."""

    name: str
    title: str
    summary: str
    data: list[dict[str, Any]]
    layout: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    height: int = 220
    legend: tuple[tuple[str, str], ...] = ()

    def as_json(self) -> dict[str, Any]:
        return {"data": self.data, "layout": {**self.layout, "height": self.height}}


def as_label(text: str) -> str:
    """A name, escaped so that plotly.js does not read parts of it as tags."""
    return html.escape(text, quote=False)


def line(x: Sequence[float | None], y: Sequence[float | None], name: str, colour: str) -> dict[str, Any]:
    """A curve; None makes a gap."""
    return {
        "type": "scatter",
        "mode": "lines" if len(x) > 1 else "markers",
        "name": name,
        "x": list(x),
        "y": [None if value is None else float(f"{value:.5g}") for value in y],
        "line": {"color": colour, "width": 1.75},
        "marker": {"color": colour},
        "hovertemplate": "%{x}: %{y:.4g}<extra>" + as_label(name) + "</extra>",
    }


def bars(x: list[Any], y: list[float], name: str, colour: str, hover: str) -> dict[str, Any]:
    """`hover`: plotly.js's template of what is shown of a bar."""
    return {"type": "bar", "name": name, "x": x, "y": y, "marker": {"color": colour}, "hovertemplate": hover}


def stacked(title: str, numbers: Sequence[float | None], y: dict[str, Any]) -> dict[str, Any]:
    """The layout of bars that stand on each other, over `numbers`; `y`: the axis of their heights."""
    return {"barmode": "stack", "bargap": 0.1, "xaxis": numbered(title, numbers) | {"showgrid": False}, "yaxis": y}


def legend_of(traces: Iterable[dict[str, Any]]) -> tuple[tuple[str, str], ...]:
    """(name, colour) of each curve or row of bars; each once."""
    return tuple(dict.fromkeys((trace["name"], trace["marker"]["color"]) for trace in traces))


def numbered(title: str, numbers: Iterable[float | None]) -> dict[str, Any]:
    """An axis of whole numbers. If there are few, it has no marks between them."""
    there = [number for number in numbers if number is not None]
    few = bool(there) and max(there) - min(there) <= MOST_MARKS
    return {"title": {"text": title}, **({"dtick": 1} if few else {})}


def column(rows: Iterable[Row], place: int) -> list[float | None]:
    return [row[place] for row in rows]

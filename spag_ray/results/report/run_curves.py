"""The curves of a run's metrics.jsonl as the page draws them: each value over its own axis and over the time that the
run ran. Curves have the names that they have in TensorBoard (curves.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from spag_ray.results.curves import Axis, Curves
from spag_ray.results.metric_lines import Clock, MetricLines
from spag_ray.results.report.thinned import Thinned


class RunCurves:
    """Reads a file while it is written. `num_points`: values taken so far; it grows when there is something new. A file
    that is replaced, because its run was deleted and started again, is read from its start."""

    def __init__(self, path: Path) -> None:
        self.num_points = 0
        self._path = path
        self._begin()

    def _begin(self) -> None:
        self._lines = MetricLines(self._path)
        self._points = Curves()
        self._curves: dict[str, tuple[Axis, Thinned]] = {}
        self._clock = Clock()

    def read(self) -> None:
        """Takes the lines that were written since the last call."""
        if self._lines.is_replaced():
            self._begin()
            self.num_points += 1  # what is shown has changed
        for time, line in self._lines.typed():
            self._clock.take(time, line)
            if (points := self._points.points(time, line)) is None:
                continue
            seconds = self._clock.running(time)
            for name, value in points.values.items():
                if not isinstance(value, str):  # a text is an event
                    _, rows = self._curves.setdefault(name, (points.axis, Thinned()))
                    rows.add((float(points.x), seconds, value))
                    self.num_points += 1

    @property
    def last_time(self) -> float | None:
        """When the newest line was written, in seconds since the epoch; None without lines."""
        return self._clock.ended if self._clock.num_lines else None

    @property
    def names(self) -> list[str]:
        return sorted(self._curves)

    def curve(self, name: str) -> list[Any] | None:
        """[axis, x, seconds, values], thinned to 1,000 points; None if the run has no such curve."""
        if name not in self._curves:
            return None
        axis, rows = self._curves[name]
        return [axis, *([_short(row[place]) for row in rows.rows()] for place in range(3))]

    def as_json(self) -> dict[str, Any]:
        """{name: its curve}"""
        return {name: self.curve(name) for name in self.names}


def _short(value: float | None) -> float | int | None:
    """Six digits."""
    if value is None:
        return None
    return int(value) if value % 1 == 0 and abs(value) < 1e15 else float(f"{value:.6g}")

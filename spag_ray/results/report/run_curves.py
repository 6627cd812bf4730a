"""The curves of a run's metrics.jsonl as the page draws them: each value over its own axis and over the time that the
run ran, in constant memory. Curves have the names that they have in TensorBoard (curves.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from spag_ray.results.curves import Axis, Curves
from spag_ray.results.metric_lines import Clock, MetricLines

Row = tuple[float | None, ...]


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


class Thinned:
    """Rows of numbers in order, at most 2 * `limit` of them; None is a missing value. When there are too many,
    neighbours are averaged.

    >>> curve = Thinned(limit=2)
    >>> for x in range(8):
    ...     curve.add((float(x), None if x % 2 else 1.0))
    >>> curve.rows()
    [(1.5, 1.0), (5.5, 1.0)]
    """

    def __init__(self, limit: int = 500) -> None:
        self.num_added = 0
        self._limit = limit
        self._stride = 1
        self._rows: list[Row] = []
        self._pending: list[Row] = []

    def add(self, row: Row) -> None:
        self.num_added += 1
        self._pending.append(row)
        if len(self._pending) == self._stride:
            self._rows.append(_mean(self._pending))
            self._pending = []
        if len(self._rows) >= 2 * self._limit:
            self._rows = [_mean(self._rows[place : place + 2]) for place in range(0, len(self._rows), 2)]
            self._stride *= 2

    def rows(self) -> list[Row]:
        return [*self._rows, _mean(self._pending)] if self._pending else list(self._rows)


def _mean(rows: Sequence[Row]) -> Row:
    return rows[0] if len(rows) == 1 else tuple(_mean_of(column) for column in zip(*rows, strict=True))


def _mean_of(values: Sequence[float | None]) -> float | None:
    there = [value for value in values if value is not None]
    return sum(there) / len(there) if there else None

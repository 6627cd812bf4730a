"""Curves of any length in constant memory: when there are too many points, neighbours are averaged.

>>> curve = Thinned(limit=2)
>>> for x in range(8):
...     curve.add((float(x), None if x % 2 else 1.0))
>>> curve.rows()
[(1.5, 1.0), (5.5, 1.0)]
"""

from __future__ import annotations

from collections.abc import Sequence

Row = tuple[float | None, ...]


class Thinned:
    """Rows of numbers in order, at most 2 * `limit` of them; None is a missing value."""

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

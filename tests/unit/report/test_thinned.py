"""Curves in constant memory: neighbours are averaged, no value counts twice or is lost."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spag_ray.results.report.thinned import Thinned


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

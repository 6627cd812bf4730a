"""Pieces of HTML: everything that comes from a run is escaped, and quantities read as people say them."""

import pytest

from spag_ray.results.report.figure import Figure
from spag_ray.results.report.markup import (
    chart,
    duration,
    facts,
    folded,
    in_words,
    joined,
    notices,
    numbers,
    paragraph,
    table,
)
from tests.support.report_runs import HOSTILE


def test_no_text_becomes_markup() -> None:
    figure = Figure(name=HOSTILE, title=HOSTILE, summary=HOSTILE, data=[], note=HOSTILE, legend=((HOSTILE, HOSTILE),))
    pieces = [paragraph(HOSTILE), facts([(HOSTILE, HOSTILE)]), chart(figure)]
    pieces.append(table(HOSTILE, [HOSTILE], [[HOSTILE, HOSTILE]]))
    pieces += [notices([HOSTILE]), numbers([(HOSTILE, HOSTILE, HOSTILE)]), folded(HOSTILE, HOSTILE)]
    for piece in [*pieces, paragraph("safe") + HOSTILE, joined([paragraph("safe"), HOSTILE])]:  # type: ignore[list-item]
        assert "<script" not in piece
        assert "<img" not in piece
        assert "<!--" not in piece
        assert "&lt;script&gt;" in piece


@pytest.mark.parametrize(
    ("seconds", "said"),
    [(0, "0 s"), (59.6, "1 min 0 s"), (61, "1 min 1 s"), (3600, "1 h"), (90_000, "1 d 1 h"), (86_400 * 3, "3 d")],
)
def test_a_duration_is_said_in_two_units(seconds: float, said: str) -> None:
    assert duration(seconds) == said


def test_large_numbers_are_short() -> None:
    assert (in_words(999_999), in_words(1_500_000), in_words(2e9)) == ("999,999", "1.5 M", "2 G")
    assert (in_words(999_400_000), in_words(999_600_000)) == ("999 M", "1 G")

"""Pieces of HTML, made by Jinja2 with autoescape: data of a run is always text, never markup.

>>> paragraph("<b>")
Markup('<p>&lt;b&gt;</p>')
>>> in_words(8_250_000), in_words(1234), duration(4000)
('8.25 M', '1,234', '1 h 6 min')
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from spag_ray.results.report.figure import Figure

_TEMPLATES = Environment(
    loader=PackageLoader("spag_ray.results", "report"),
    autoescape=True,
    undefined=StrictUndefined,
    keep_trailing_newline=True,
)
NOTHING = Markup()


def page(**parts: Any) -> str:
    """The whole page, page.html."""
    return _TEMPLATES.get_template("page.html").render(**parts)


def joined(parts: Iterable[Markup]) -> Markup:
    return NOTHING.join(parts)


def paragraph(text: str, kind: str = "") -> Markup:
    return _piece("paragraph", text, kind)


def heading(text: str) -> Markup:
    """Above the parts of a section that are of one game."""
    return _piece("heading", text)


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> Markup:
    """A table; the first column has the name of the row."""
    return _piece("table", caption, headings, list(rows))


def chart(figure: Figure) -> Markup:
    """The placeholder of a figure. The page draws it when it comes into view."""
    return _piece("chart", figure)


def facts(pairs: Iterable[tuple[str, str]]) -> Markup:
    return _piece("facts", list(pairs))


def numbers(rows: Iterable[tuple[str, str, str]]) -> Markup:
    """Rows of (name, value, remark)."""
    return _piece("numbers", list(rows))


def notices(lines: Sequence[str]) -> Markup:
    return _piece("notices", lines) if lines else NOTHING


def folded(title: str, text: str) -> Markup:
    """A long text that is shown on a click."""
    return _piece("folded", title, text)


def block(*parts: Markup) -> Markup:
    return _piece("block", parts)


def _piece(name: str, *values: object) -> Markup:
    macro = getattr(_TEMPLATES.get_template("pieces.html").module, name)
    made: Markup = macro(*values)
    return made


def in_words(count: float) -> str:
    for least, size, name in ((999.5e6, 1e9, "G"), (1e6, 1e6, "M")):  # 999.5 M has three digits as 1 G alone
        if count >= least:
            return f"{count / size:.3g} {name}"
    return f"{count:,.0f}"


def duration(seconds: float) -> str:
    """A duration in its two largest units."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), 3)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number or unit == "s")

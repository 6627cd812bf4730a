"""Pieces of HTML. What comes from a run is escaped here and nowhere else.

>>> row_of_cells("<b>", "1")
'<tr><th scope="row">&lt;b&gt;</th><td>1</td></tr>'
>>> in_words(8_250_000), in_words(1234), duration(4000)
('8.25 M', '1,234', '1 h 6 min')
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from spag_ray.results.report.figure import Figure


def escape(text: object) -> str:
    return html.escape(str(text))


def paragraph(text: str, kind: str = "") -> str:
    return f'<p class="{kind}">{escape(text)}</p>' if kind else f"<p>{escape(text)}</p>"


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """The first column names its row. It scrolls by itself where it is wider than the page; the caption stays."""
    head = "".join(f'<th scope="col">{escape(heading)}</th>' for heading in headings)
    body = "".join(row_of_cells(*row) for row in rows)
    return (
        f'<figure class="rows"><figcaption>{escape(caption)}</figcaption>'
        f'<div class="scrolls" tabindex="0" role="group" aria-label="{escape(caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div></figure>"
    )


def row_of_cells(first: str, *more: str) -> str:
    cells = "".join(f"<td>{escape(cell)}</td>" for cell in more)
    return f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>'


def chart(figure: Figure) -> str:
    """The place of a figure, which the page draws when it comes into view."""
    note = f" <small>{escape(figure.note)}</small>" if figure.note else ""
    legend = "".join(
        f'<span><i style="background:var({escape(colour)})"></i>{escape(name)}</span>' for name, colour in figure.legend
    )
    colours = f'<p class="colours">{legend}</p>' if legend else ""
    return (
        f'<figure class="chart"><figcaption>{escape(figure.title)}{note}</figcaption>{colours}'
        f'<div class="plot" id="plot-{escape(figure.name)}" role="img" aria-label="{escape(figure.summary)}" '
        f'style="height:{figure.height}px"></div></figure>'
    )


def facts(pairs: Iterable[tuple[str, str]]) -> str:
    rows = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in pairs)
    return f'<dl class="pairs">{rows}</dl>'


def in_words(count: float) -> str:
    for size, name in ((1e9, "G"), (1e6, "M")):
        if count >= size:
            return f"{count / size:.3g} {name}"
    return f"{count:,.0f}"


def megabytes(num_bytes: int) -> str:
    return f"{num_bytes / 1e6:.1f} MB"


def duration(seconds: float) -> str:
    """The two units that say most."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    days, hours = divmod(hours, 24)
    parts = [(days, "d"), (hours, "h"), (minutes, "min"), (rest, "s")]
    first = next((place for place, (number, _) in enumerate(parts) if number), 3)
    return " ".join(f"{number} {unit}" for number, unit in parts[first : first + 2] if number or unit == "s")

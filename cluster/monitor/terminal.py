"""Lines, tables, curves and bars for a terminal, and safe display of untrusted text.

>>> sparkline([1, 2, 3, 8], 10), bar(0.4, 5), duration(3725)
('▁▂▃█', '██   ', '1:02:05')
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
ASCII = str.maketrans(
    dict(zip(_LEVELS, "_.-~=+*#", strict=True)) | dict.fromkeys(_EIGHTHS[1:-1], ".") | {"±": "~", "…": "."}
)


def plain(text: object) -> str:
    """Untrusted text in a form that is safe for a terminal: one line of at most 400 characters, none of which moves the
    cursor or changes the direction of writing."""
    shown = str(text)[:400].replace("\n", " ").replace("\t", " ")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)


def say(console: Console, text: str, highlight: bool | None = None) -> None:
    """A line that is not wrapped, so that a path or a command in it can be copied, and in which nothing is markup.
    `highlight`: colour paths and numbers, as the console does if it is None."""
    console.print(text, soft_wrap=True, markup=False, emoji=False, highlight=highlight)


def table_of(title: str | Text, left: Sequence[str], right: Sequence[str] = ()) -> Table:
    """A table with these columns, by where their cells stand; none of them is wrapped. "": no title."""
    table = Table(title=title, title_justify="left", box=box.SIMPLE, padding=(0, 1, 0, 0))
    for heading in left:
        table.add_column(heading, no_wrap=True)
    for heading in right:
        table.add_column(heading, justify="right", no_wrap=True)
    return table


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def sparkline(values: Iterable[float], width: int) -> str:
    """The last `width` finite values, scaled between their minimum and maximum."""
    shown = [value for value in values if math.isfinite(value)][-width:] if width > 0 else []
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    return "".join(_LEVELS[round((value - low) / span * 7) if span else 3] for value in shown)


def bar(share: float, width: int) -> str:
    """A bar that fills `share` (0 to 1) of `width` columns, in eighths; padded to `width`."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)

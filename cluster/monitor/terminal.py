"""Curves and bars of block characters for a terminal, and untrusted text made harmless.

>>> sparkline([1, 2, 3, 8], 10), bar(0.4, 5), duration(3725)
('▁▂▃█', '██   ', '1:02:05')
"""

from __future__ import annotations

from collections.abc import Iterable

_LEVELS = "▁▂▃▄▅▆▇█"
_EIGHTHS = " ▏▎▍▌▋▊▉█"
ASCII = str.maketrans(
    dict(zip(_LEVELS, "_.-~=+*#", strict=True)) | dict.fromkeys(_EIGHTHS[1:-1], ".") | {"±": "~", "…": "."}
)


def plain(text: object, most: int = 400) -> str:
    """Text from elsewhere, as a terminal may be given it: on one line, without what moves a cursor or turns writing
    round."""
    shown = str(text)[:most].replace("\n", " ").replace("\t", " ")
    return "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in shown)


def duration(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}" if hours else f"{minutes:02d}:{seconds:02d}"


def sparkline(values: Iterable[float], width: int) -> str:
    """The last `width` of them, between their least and their greatest."""
    shown = list(values)[-width:] if width > 0 else []
    if not shown:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    return "".join(_LEVELS[round((value - low) / span * 7) if span else 3] for value in shown)


def bar(share: float, width: int) -> str:
    """`share` (0 to 1) of `width` columns, in eighths; always `width` wide."""
    eighths = round(min(max(share, 0.0), 1.0) * width * 8)
    whole, rest = divmod(eighths, 8)
    return ("█" * whole + (_EIGHTHS[rest] if rest else "")).ljust(width)

"""The table of docs/metrics.md, made from the registry of metrics.

python -m tests.support.metrics_page     # writes it into the page
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cluster.tracking.metric_registry import rows

PAGE = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
COMMAND = "python -m tests.support.metrics_page"
HEAD = "| name | line of `metrics.jsonl`: field | kind | unit | labels | what | usual range | if it leaves it |"


def page() -> str:
    """The page with the table as it has to be."""
    (before, after) = re.split(rf"{re.escape(HEAD)}\n(?:\|.*\n)+", PAGE.read_text(encoding="utf-8"))
    return before + "\n".join([HEAD, "|" + "---|" * 8, *table(), after])


def table() -> Iterator[str]:
    for row in rows():
        lines = row.lines.split(", ")
        names = [row.name] if len(lines) == 1 else [f"{line}_{row.name}" for line in lines]
        cells = [
            ", ".join(f"`spag_ray_{name}`" for name in names),
            ", ".join(f"`{line}`" for line in lines) + (f": `{row.field}`" if row.field else ""),
            row.kind.split()[0],
            row.unit,
            row.labels,
            row.told,
            row.usual_range,
            row.remedy,
        ]
        yield f"| {' | '.join(cell or '-' for cell in cells)} |"


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")

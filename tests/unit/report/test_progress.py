"""What the live view of a run shows."""

from __future__ import annotations

from rich.console import Console

from cluster.monitor.progress import ProgressLine
from cluster.types import Progress


def test_a_note_is_shown_once_and_only_the_last_are_kept() -> None:
    console = Console(record=True, width=100)
    line = ProgressLine(console)
    for notes, num_notes in (((), 0), (("a", "b"), 2), (("a", "b"), 2), (("b", "c"), 3), (("f", "g"), 7)):
        line.show(Progress("play", notes=notes, num_notes=num_notes), None)
    shown = [text for text in console.export_text().splitlines() if len(text) == 1]
    assert shown == ["a", "b", "c", "f", "g"]

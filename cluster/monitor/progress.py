"""One line that says what a run is doing: a live display on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext

from rich.console import Console
from rich.live import Live
from rich.text import Text

from cluster.monitor.terminal import duration
from cluster.types import Progress
from spag_ray.game.rules import Outcome
from spag_ray.results.game_names import GameNames

PLAIN_EVERY_S = 15.0


class ProgressLine:
    """Shows each Progress that it receives. It remembers when the stage began, for rates and the time left. `keep` gets
    the lines of a live display as often as they would be printed without one."""

    def __init__(self, console: Console, keep: Callable[[str], None] = lambda line: None) -> None:
        self._console = console
        self._keep = keep
        self._stage = ""
        self._began = time.perf_counter()
        self._first = Progress()
        self._last_line = float("-inf")
        self._num_notes = 0

    def show(self, progress: Progress, live: Live | None) -> None:
        now = time.perf_counter()
        num_new = progress.num_notes - self._num_notes
        for note in progress.notes[-num_new:] if num_new else ():
            self._console.print(Text(note), soft_wrap=True)
        self._num_notes = progress.num_notes
        if is_new := progress.stage != self._stage:
            self._stage, self._began, self._first = progress.stage, now, progress
        line = describe(progress, now - self._began, self._first)
        if live is not None:
            live.update(Text(line, no_wrap=True, overflow="ellipsis"))
        if is_new or now - self._last_line >= PLAIN_EVERY_S:
            self._last_line = now
            if live is None:
                self._console.print(Text(line), soft_wrap=True)
            else:
                self._keep(line)


def describe(progress: Progress, stage_seconds: float, first: Progress) -> str:
    """The line. Rates and the time left are computed from what came since `first`, what the stage was `stage_seconds`
    ago: a resumed stage begins with the games in its log."""
    parts = [duration(progress.seconds), progress.stage, *progress.waits]
    if progress.total:
        parts.append(f"{progress.done}/{progress.total} {progress.unit}")
    elif progress.done:  # of a stream, which continues while other stages are shown
        parts.append(f"{progress.done} {progress.unit}")
    if progress.done > first.done and progress.total and stage_seconds > 0:
        rate = (progress.done - first.done) / stage_seconds
        parts.append(f"{rate:.2f} {progress.unit}/s")
        if progress.num_tokens:
            parts.append(f"{(progress.num_tokens - first.num_tokens) / stage_seconds:.0f} tokens/s")
        parts.append(f"{(progress.total - progress.done) / rate:.0f} s left")
    if progress.outcomes:
        games, names = sum(progress.outcomes.values()), GameNames(seats=progress.seats)
        shares = {Outcome(name): number / games for name, number in sorted(progress.outcomes.items())}
        parts.append(", ".join(f"{names.short_outcome(outcome)} {share:.0%}" for outcome, share in shares.items()))
    if progress.loss is not None:
        parts.append(f"loss {progress.loss:.3f}")
    parts.append(f"v{progress.version}")
    if progress.is_paused:
        parts.append("paused")
    return " | ".join(parts)


def watch(
    console: Console,
    is_done: Callable[[float], bool],
    status: Callable[[], Progress],
    keep: Callable[[str], None] = lambda line: None,
) -> None:
    """Show `status()` until `is_done(seconds to wait)`; `keep`: see ProgressLine."""
    line = ProgressLine(console, keep)
    display: AbstractContextManager[Live | None] = nullcontext()
    if console.is_terminal:
        display = Live(console=console, refresh_per_second=4, transient=True)
    with display as live:
        while not is_done(0.5):
            line.show(status(), live)

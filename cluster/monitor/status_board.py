"""What a run is doing now: its parts write here, and displays read it."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace

from cluster.types import Progress
from spag_ray.episodes.episode import GameCount
from spag_ray.results.game_names import GameNames

MAX_NOTES = 50


class StatusBoard:
    """The board of one run. `version` returns the version of its weights; it is called each time something is shown.
    `game`: the names of its seats."""

    def __init__(self, version: Callable[[], int], game: GameNames) -> None:
        self._version = version
        self._game = game
        self._progress = Progress()
        self._notes: deque[str] = deque(maxlen=MAX_NOTES)
        self._num_notes = 0
        self._waits: dict[str, tuple[str, float]] = {}  # {part of the run: (what it waits for, since when)}
        self._began = time.perf_counter()

    def set_status(self, stage: str) -> None:
        self._progress = Progress(stage, version=self._version())

    def show_steps(self, stage: str, done: int, total: int, loss: float | None) -> None:
        self._progress = Progress(stage, done, total, "steps", loss=loss, version=self._version())

    def show_answers(self, stage: str, done: int, total: int) -> None:
        self._progress = Progress(stage, done, total, "answers", version=self._version())

    def show_games(self, stage: str, total: int, count: GameCount) -> None:
        """`total`: the number of games to play; 0 if there is no limit."""
        self._progress = Progress(
            f"{stage}: play",
            count.num_games,
            total,
            "games",
            num_tokens=count.num_tokens,
            outcomes={str(outcome): number for outcome, number in count.outcomes.items()},
            seats=self._game.seats,
            version=self._version(),
        )

    def waits_for(self, part: str, what: str | None) -> None:
        """What a part of the run waits for from now on, or None. Whoever waits says so, also from other threads."""
        if what is None:
            self._waits.pop(part, None)
        elif self._waits.get(part, ("",))[0] != what:
            self._waits[part] = what, time.perf_counter()

    def note(self, text: str) -> None:
        """A line that every display of the run shows once."""
        self._notes.append(text)
        self._num_notes += 1

    def progress(self, is_paused: bool) -> Progress:
        now = time.perf_counter()
        waits = tuple(f"{part}: {what}, {now - since:.0f} s" for part, (what, since) in dict(self._waits).items())
        progress = replace(self._progress, waits=waits, seconds=now - self._began, is_paused=is_paused)
        return replace(progress, notes=tuple(self._notes), num_notes=self._num_notes)

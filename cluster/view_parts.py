"""The parts of a RunView (run_view.py): what is kept of each kind of line."""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.metric_registry import phase_of
from spag_ray.ending import ENDINGS, Ending
from spag_ray.game import Outcome

MAX_POINTS = 400
CURVES = ("loss", "kl", "entropy", "ratio_max")
_OF_A_STEP = ("learning_rate", "gradient_norm")


@dataclass(frozen=True)
class Shares:
    """How games ended: {outcome: games}."""

    name: str
    outcomes: Mapping[str, int]

    @property
    def num_games(self) -> int:
        return sum(self.outcomes.values())


@dataclass
class Learning:
    """A policy's learner: its newest step, and the curves of the phase that this is in."""

    stage: str = ""
    step: int = 0
    learning_rate: float = 0.0
    gradient_norm: float = 0.0
    curves: dict[str, deque[float]] = field(default_factory=dict)

    def take(self, line: Mapping[str, Any]) -> None:
        stage, step = str(line["stage"]), int(line["step"])
        if phase_of(stage) != phase_of(self.stage):
            self.curves = {}
        self.stage, self.step = stage, step
        self.learning_rate, self.gradient_norm = (float(line.get(name) or 0) for name in _OF_A_STEP)
        for name in CURVES:
            if (value := line.get(name)) is not None and math.isfinite(value):
                self.curves.setdefault(name, deque(maxlen=MAX_POINTS)).append(float(value))


@dataclass(frozen=True)
class Published:
    """The newest version of the weights that engines took. `probe_gap_max` in nats."""

    version: int
    seconds: float
    num_engines: int
    num_bytes: int
    probe_gap_max: float


@dataclass(frozen=True)
class Waiting:
    """The buffer. `lags`: {versions: episodes that were so much older than what learned them}; of a stream, like
    `permits` and `num_evicted`."""

    num_episodes: int
    oldest_s: float
    permits: int | None
    num_evicted: int
    lags: Mapping[str, int]


class Learned:
    """How many rounds, or versions of a stream, were learned and published, and how long each took."""

    def __init__(self) -> None:
        self.num_done = 0
        self.num_timed = 0
        self.newest = 0.0
        self._seconds = 0.0
        self._learning: int | None = None

    @property
    def seconds_each(self) -> float:
        return self._seconds / self.num_timed

    def learns(self, number: int) -> None:
        self._learning = number

    def published(self, at: float) -> None:
        if self._learning is not None:
            self.num_done = max(self.num_done, self._learning)
            if self.newest:
                self._seconds += at - self.newest
                self.num_timed += 1
        self.newest, self._learning = at, None


def lags_of(line: Mapping[str, Any]) -> dict[str, int]:
    return {name.removeprefix("lag_"): int(count) for name, count in line.items() if name.startswith("lag_")}


def outcomes_of(line: Mapping[str, Any]) -> Counter[str]:
    """Of a line `games`, which says in more detail how they ended."""
    counts: Counter[str] = Counter()
    for each in ENDINGS:
        counts[str(_outcome_of(each))] += int(line.get(str(each), 0))
    return +counts


def _outcome_of(end: Ending) -> Outcome:
    return next(
        outcome
        for outcome in Outcome
        if (end.result == "tie" and outcome is Outcome.TIED)
        or (end.result == "win" and outcome.winner == end.seat)
        or (end.result == "breach" and outcome.breaker == end.seat)
    )

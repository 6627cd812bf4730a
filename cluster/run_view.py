"""What there is to see of a run, from the lines of its metrics.jsonl: for `spag-ray watch`.

    view = RunView("quickstart", config)
    for line in MetricLines(folder / "metrics.jsonl").new():
        view.take(line)                                        # watch_frame.py draws it

It grows with the number of stages alone, however long the run.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from cluster.metric_registry import phase_of
from cluster.progress import Progress
from spag_ray.config import RunConfig
from spag_ray.ending import ENDINGS, Ending
from spag_ray.game import Outcome

MAX_POINTS = 400
MAX_HAPPENINGS = 50
LATELY = 13  # lines `games`, at most one every 5 s
CURVES = ("loss", "kl", "entropy", "ratio_max")
_OF_A_STEP = ("learning_rate", "gradient_norm")
_HAPPENINGS = {
    "restart": "{what} is begun again ({cause}): {reason}",
    "engine_joined": "{engine} joined, at version {version}",
    "engine_lost": "{engine} was found dead",
    "engine_left": "{engine} was taken out",
    "resumed": "went on from checkpoint {checkpoint}",
    "log_damage": "the log of {stage} was damaged: {damage}",
    "set_aside": "{log} was set aside: played beyond the checkpoint",
}

KINDS = ("games", "buffer", "play", "step", "stream", "sync", *_HAPPENINGS)  # of lines that it shows


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


class RunView:
    """`config` is None where it cannot be read. `progress` is what the run itself says, `end` how it ended, where that
    is known; `evaluations` are the rows of evaluations.json. `num_unread` lines were not understood: another version
    of spag_ray wrote them."""

    def __init__(self, name: str, config: RunConfig | None = None) -> None:
        self.name = name
        self.config = config
        self.progress: Progress | None = None
        self.end: str | None = None
        self.evaluations: list[Mapping[str, Any]] = []
        self.num_unread = 0
        self.began: float | None = None
        self.newest: float | None = None
        self.doing = "starting"
        self.learning: dict[str, Learning] = {}
        self.published: dict[str, Published] = {}
        self.waiting: Waiting | None = None
        self.sync_seconds: deque[float] = deque(maxlen=MAX_POINTS)
        self.tokens_per_s: deque[float] = deque(maxlen=MAX_POINTS)
        self.games_per_s = 0.0
        self.held_out: dict[str, Shares] = {}
        self.restarts: Counter[str] = Counter()
        self.happenings: deque[tuple[float, str]] = deque(maxlen=MAX_HAPPENINGS)
        self._self_play: deque[Counter[str]] = deque(maxlen=LATELY)
        self._games: Mapping[str, Any] | None = None  # the newest such line
        self._is_stream = False
        self._learned = _Learned()

    def take(self, line: Mapping[str, Any]) -> None:
        """`line` has `time` and `kind`; whatever else it has."""
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            self.num_unread += 1

    @property
    def self_play(self) -> Shares | None:
        """The last minute of it in which games ended."""
        if not self._self_play:
            return None
        first, last = self._self_play[0], self._self_play[-1]
        return Shares("self-play", (last - first) or last)

    def learned(self) -> tuple[int, int] | None:
        """(rounds that were learned and published, all of them); of a stream it is versions."""
        config = self.config
        if config is None or not config.self_play.rounds:
            return None
        total = config.self_play.rounds
        if config.schedule == "stream":
            total *= config.self_play.games_per_round // config.stream.games_per_version
        return min(self._learned.num_done, total), total

    def seconds_left(self, now: float) -> float | None:
        """By what a round, or a version of a stream, has taken so far; None while nobody can know."""
        learned = self.learned()
        if learned is None or self._learned.num_timed == 0:
            return None
        num_left = learned[1] - learned[0]
        return max(0.0, num_left * self._learned.seconds_each - (now - self._learned.newest))

    def _take(self, line: Mapping[str, Any]) -> None:
        kind = line["kind"]
        self.began = line["time"] if self.began is None else self.began
        self.newest = line["time"]
        if (words := _HAPPENINGS.get(kind)) is not None:
            self.happenings.append((line["time"], words.format_map(line)))
        if (take := getattr(self, f"_take_{kind}", None)) is not None:
            take(line)

    def _take_step(self, line: Mapping[str, Any]) -> None:
        learning = self.learning.setdefault(str(line["policy"]), Learning())
        learning.take(line)
        self.doing = f"{learning.stage}: learn, step {learning.step}"
        if not self._is_stream and phase_of(learning.stage) == "self_play":
            self._learned.learns(int(learning.stage.split("-")[1]))

    def _take_stream(self, line: Mapping[str, Any]) -> None:
        self._is_stream = True
        self.games_per_s = float(line["games_per_s"])
        if self.config is not None:
            self._learned.learns(sum(_lags(line).values()) // self.config.stream.games_per_version)

    def _take_sync(self, line: Mapping[str, Any]) -> None:
        published = Published(
            int(line["version"]),
            float(line["seconds"]),
            int(line.get("num_engines", 0)),
            int(line.get("num_bytes", 0)),
            float(line.get("probe_gap_max", 0)),
        )
        self.published[str(line["policy"])] = published
        self.sync_seconds.append(published.seconds)
        self._learned.published(line["time"])

    def _take_buffer(self, line: Mapping[str, Any]) -> None:
        permits = line.get("permits_free")
        self.waiting = Waiting(
            int(line["waiting"]),
            float(line["oldest_s"]),
            None if permits is None else int(permits),
            int(line.get("evicted", 0)),
            _lags(line),
        )

    def _take_play(self, line: Mapping[str, Any]) -> None:
        stage = str(line["stage"])
        self.doing = f"{stage}: played"
        self.games_per_s = float(line["games_per_s"])
        if phase_of(stage) == "evaluation":
            name = stage.removeprefix("eval-").removeprefix("match-")
            self.held_out[name] = Shares(name, {str(each): int(line[each]) for each in Outcome if each in line})

    def _take_games(self, line: Mapping[str, Any]) -> None:
        """Sums of a phase, since the buffer's process began."""
        outcomes, num_tokens = outcomes_of(line), int(line["tokens"])
        if line["phase"] == "self_play":
            if self._self_play and self._self_play[-1] - outcomes:
                self._self_play.clear()  # they have fallen
            self._self_play.append(outcomes)
        before, self._games = self._games, line
        if before is None or before["phase"] != line["phase"] or num_tokens < before["tokens"]:
            return
        seconds = line["time"] - before["time"]
        if 0 < seconds < 60:  # else something else went on between
            self.tokens_per_s.append((num_tokens - before["tokens"]) / seconds)
            self.games_per_s = (outcomes.total() - outcomes_of(before).total()) / seconds

    def _take_restart(self, line: Mapping[str, Any]) -> None:
        self.restarts[line["what"].replace(".", "-").split("-")[0]] += 1


class _Learned:
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


def _lags(line: Mapping[str, Any]) -> dict[str, int]:
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

"""The state of a run, computed from the lines of its metrics.jsonl: for `spag-ray watch`.

    view = RunView("quickstart", config)
    for line in MetricLines(folder / "metrics.jsonl").new():
        view.take(line)                                        # frame.py draws it

Its size depends only on the number of stages, not on the length of the run.
"""

from __future__ import annotations

import math
from collections import Counter, deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cluster.types import Progress
from spag_ray.config.run import RunConfig
from spag_ray.results.evaluations import Evaluation
from spag_ray.results.game_names import names_of_all, read_names_by_game, told_apart
from spag_ray.results.lines import (
    OUTCOME_OF_END,
    BufferLine,
    CollapseLine,
    EvaluationLine,
    ExploitabilityLine,
    GamesLine,
    IterationLine,
    Line,
    PlayLine,
    RestartLine,
    ResumedLine,
    StepLine,
    StepReport,
    StreamLine,
    SyncLine,
    SyncReport,
    parse_line,
)
from spag_ray.results.metric_lines import Clock
from spag_ray.stages import Stage

MAX_POINTS = 400
CURVES = ("loss", "kl", "entropy", "ratio_max")


@dataclass
class Learning:
    """A policy's learner: its newest step, and the curves of that step's phase, of finite values. `newest`: of each
    curve, finite or not."""

    stage: str = ""
    report: StepReport = field(default_factory=lambda: StepReport(0))
    curves: dict[str, deque[float]] = field(default_factory=dict)
    newest: dict[str, float] = field(default_factory=dict)

    def take(self, line: StepLine) -> None:
        if Stage.parse(line.stage).phase != Stage.parse(self.stage).phase:
            self.curves, self.newest = {}, {}
        self.stage, self.report = line.stage, line.report
        for name in CURVES:
            if (value := getattr(line.report, name)) is not None:
                self.newest[name] = value
                if math.isfinite(value):
                    self.curves.setdefault(name, deque(maxlen=MAX_POINTS)).append(value)


class Learned:
    """How many rounds, or versions of a stream, were trained on and published, and how long each took."""

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

    def resumed(self) -> None:
        """What was learned since the last version is lost, and the time since then is no time of a round."""
        self.newest, self._learning = 0.0, None

    def published(self, at: float) -> None:
        if self._learning is not None:
            self.num_done = max(self.num_done, self._learning)
            if self.newest:
                self._seconds += at - self.newest
                self.num_timed += 1
        self.newest, self._learning = at, None


def outcomes_of(line: GamesLine) -> Counter[str]:
    """{outcome: games}, summed over the more detailed ends of games in the line."""
    counts: Counter[str] = Counter()
    for end, games in line.ends.items():
        counts[OUTCOME_OF_END[end.partition(":")[0]]] += games
    return +counts


MAX_HAPPENINGS = 50
LATELY = 13  # lines of kind `games` that are kept; there is at most one every 5 s
RATES_LAST_S = 60.0  # since a game's last line; there is one every 5 s while games of it end
_HAPPENINGS = {
    "restart": "{what} is restarted ({cause}): {reason}",
    "engine_joined": "{engine} joined, at version {version}",
    "engine_lost": "{engine} was stopped: {reason}",
    "engine_left": "{engine} left: {reason}",
    "resumed": "resumed from checkpoint {checkpoint}",
    "log_damage": "the log of {stage} was damaged: {damage}",
    "set_aside": "{log} was set aside: played beyond the checkpoint",
}

# The kinds of lines that RunView shows.
KINDS = (
    *("collapse", "evaluation", "exploitability", "games", "buffer", "iteration", "play", "step", "stream", "sync"),
    *_HAPPENINGS,
)


class RunView:
    """`config` is None if it cannot be read; `folder`: of the run, if it is here. `game` has the names of its seats.
    `progress` is the run's own report, if there is one. `end` says how the run ended, if it is known. `evaluations` are
    by stage, task and metric; the newest is last. `num_unread`: lines of an unknown format, from another version of
    spag_ray."""

    def __init__(self, name: str, config: RunConfig | None = None, folder: Path | None = None) -> None:
        self.name = name
        self.config = config
        self._names = read_names_by_game(folder or Path(name), config)
        self.game = names_of_all(self._names)
        self.progress: Progress | None = None
        self.end: str | None = None
        self.evaluations: dict[tuple[str, str, str], Evaluation] = {}
        self.num_unread = 0
        self.began: float | None = None
        self.clock = Clock()
        self.newest: float | None = None
        self.doing = "starting"
        self.learning: dict[str, Learning] = {}
        self.published: dict[str, SyncReport] = {}
        self.buffer: BufferLine | None = None
        self.iteration: IterationLine | None = None
        self.sync_seconds: deque[float] = deque(maxlen=MAX_POINTS)
        self.tokens_per_s: deque[float] = deque(maxlen=MAX_POINTS)
        self.games_per_s = 0.0
        self.held_out: dict[str, Mapping[str, int]] = {}
        self.restarts: Counter[str] = Counter()
        self.happenings: deque[tuple[float, str]] = deque(maxlen=MAX_HAPPENINGS)
        self._self_play: dict[str, deque[Counter[str]]] = {}  # by game
        self._games: dict[str, tuple[float, GamesLine]] = {}  # the newest line of each, and when it was written
        self._rates: dict[str, tuple[float, float]] = {}  # games and tokens per second, by game
        self._played: dict[str, PlayLine] = {}  # of the newest stage that was played, by game
        self._is_stream = False
        self._learned = Learned()

    def take(self, line: Mapping[str, Any]) -> None:
        """Takes a line of metrics.jsonl. Only `time` and `kind` have to be right; a line of an unknown format is
        counted."""
        try:
            self._take(line)
        except (KeyError, TypeError, ValueError, AttributeError, ArithmeticError):
            self.num_unread += 1

    def evaluated(self, row: Mapping[str, Any]) -> None:
        """Takes a row of evaluations.json. Raises KeyError, TypeError or ValueError for a malformed row."""
        found = Evaluation.from_json({"stderr": None, **row})
        self.evaluations[found.stage, found.task, found.metric] = found

    @property
    def self_play(self) -> dict[str, Mapping[str, int]]:
        """{title: {outcome: self-play games of the last minute in which games ended}}, of each game."""
        lately = {game: (sums[-1] - sums[0]) or sums[-1] for game, sums in self._self_play.items()}
        return {self._named("self-play", game): outcomes for game, outcomes in lately.items()}

    def _named(self, title: str, game: str) -> str:
        return title + told_apart(self._names, f", {game}")

    def learned(self) -> tuple[int, int] | None:
        """(rounds that were trained on and published, all rounds); for a stream, versions."""
        config = self.config
        if config is None or not config.self_play.rounds:
            return None
        total = config.self_play.rounds
        if config.schedule == "stream":
            total *= config.versions_per_round
        return min(self._learned.num_done, total), total

    def seconds_left(self, now: float) -> float | None:
        """Estimated from the time of a round, or a version of a stream, so far; None without an estimate."""
        learned = self.learned()
        if learned is None or self._learned.num_timed == 0:
            return None
        num_left = learned[1] - learned[0]
        since = now - self._learned.newest if self._learned.newest else 0.0
        return max(0.0, num_left * self._learned.seconds_each - since)

    def _take(self, raw: Mapping[str, Any]) -> None:
        at: float = raw["time"]
        self.began = at if self.began is None else self.began
        self.newest = at
        line = parse_line(raw)
        self.clock.take(at, line)
        self._take_happening(line, at)
        match line:
            case StepLine():
                self._take_step(line)
            case StreamLine():
                self._take_stream(line)
            case IterationLine():
                self.iteration = line
            case SyncLine():
                self.published[line.policy] = line.report
                self.sync_seconds.append(line.report.seconds)
                self._learned.published(at)
            case BufferLine():
                self.buffer = line
            case PlayLine():
                self._take_play(line)
            case GamesLine():
                self._take_games(line, at)
            case EvaluationLine(row=row):
                self.evaluations[row.stage, row.task, row.metric] = row
            case ResumedLine():
                self._learned.resumed()
            case RestartLine():
                self.restarts[line.what.replace(".", "-").split("-")[0]] += 1

    def _take_happening(self, line: Line | None, at: float) -> None:
        match line:
            case CollapseLine():
                self.happenings.append((at, str(line)))
            case ExploitabilityLine(game=game):
                self.happenings.append((at, told_apart(self._names, f"{game}: ") + str(line)))
            case Line() if (words := _HAPPENINGS.get(line.kind)) is not None:
                self.happenings.append((at, words.format_map(line.values())))

    def _take_step(self, line: StepLine) -> None:
        learning = self.learning.setdefault(line.policy, Learning())
        learning.take(line)
        self.doing = f"{learning.stage}: learn, step {learning.report.step}"
        if not self._is_stream and (number := Stage.parse(learning.stage).round):
            self._learned.learns(number)

    def _take_stream(self, line: StreamLine) -> None:
        self._is_stream = True
        self.games_per_s = line.games_per_s
        if self.config is not None:
            self._learned.learns(sum(line.lags.values()) // self.config.stream.games_per_version)

    def _take_play(self, line: PlayLine) -> None:
        stage = Stage.parse(line.stage)
        self._played = {name: each for name, each in self._played.items() if each.stage == line.stage}
        self._played[line.game] = line
        self.doing = f"{line.stage}: played"
        self.games_per_s = sum(each.games_per_s for each in self._played.values())
        if stage.phase == "evaluation":
            self.held_out[self._named(stage.title, line.game)] = line.outcomes

    def _take_games(self, line: GamesLine, at: float) -> None:
        """The line holds sums of a phase since the buffer's process started."""
        outcomes = outcomes_of(line)
        if line.phase == "self_play":
            sums = self._self_play.setdefault(line.game, deque(maxlen=LATELY))
            if sums and sums[-1] - outcomes:
                sums.clear()  # the sums decreased: the buffer was restarted
            sums.append(outcomes)
        is_played = {
            game: last.phase == line.phase and at - written < RATES_LAST_S
            for game, (written, last) in self._games.items()
        }
        self._rates = {game: rates for game, rates in self._rates.items() if is_played[game]}
        written, last = self._games.get(line.game, (at, line))
        self._games[line.game] = at, line
        seconds = at - written
        # Else the lines are too far apart for a rate, or it is the first one.
        if 0 < seconds < RATES_LAST_S and last.phase == line.phase and line.continues(last):
            num_new = outcomes.total() - outcomes_of(last).total()
            self._rates[line.game] = num_new / seconds, (line.tokens - last.tokens) / seconds
            self.games_per_s, tokens_per_s = map(sum, zip(*self._rates.values(), strict=True))
            self.tokens_per_s.append(tokens_per_s)

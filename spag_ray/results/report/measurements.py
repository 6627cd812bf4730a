"""metrics.jsonl -> curves and counts. The file is read twice, line by line, in constant memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from spag_ray.results.curves import Steps
from spag_ray.results.lines import (
    BufferLine,
    CollapseLine,
    EngineJoinedLine,
    EngineLeftLine,
    EngineLostLine,
    ExploitabilityLine,
    GamesLine,
    IterationLine,
    Line,
    LogDamageLine,
    RestartLine,
    ResumedLine,
    SetAsideLine,
    StepLine,
    StreamLine,
    SyncLine,
)
from spag_ray.results.metric_lines import Clock, MetricLines
from spag_ray.results.report.run_curves import Row, Thinned
from spag_ray.stages import Stage

STEP_FIELDS = (
    "loss",
    "listening_nats",
    "kl",
    "entropy",
    "gradient_norm",
    "clip_fraction",
    "gap_mean",
    "attacker_weight",
    "defender_weight",
)
NUM_BINS = 90


class Activity:
    """Tokens over time: those sampled, by phase, and those trained on. `rates` are tokens per second, [NUM_BINS]."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.bin_s = max(clock.seconds, 1.0) / NUM_BINS
        self._tokens: dict[str, list[float]] = {}

    def add(self, what: str, tokens: float, begin: float, end: float) -> None:
        """Adds tokens, spread evenly between `begin` and `end`."""
        first, last = self._clock.running(begin) / self.bin_s, self._clock.running(end) / self.bin_s
        bins = self._tokens.setdefault(what, [0.0] * NUM_BINS)
        for place in range(min(int(first), NUM_BINS - 1), min(int(last), NUM_BINS - 1) + 1):
            within = min(last, place + 1) - max(first, place)
            bins[place] += tokens * (within / (last - first) if last > first else 1.0)

    @property
    def rates(self) -> dict[str, list[float]]:
        return {what: [tokens / self.bin_s for tokens in bins] for what, bins in self._tokens.items()}


@dataclass
class Measurements:
    """What the report draws. `steps`: {(policy, phase): rows of the policy's step number and STEP_FIELDS}.
    `stage_begins`: {policy: {stage: number of its first step}}. `lags`: rows of a version and the shares of its
    episodes by age in versions. `iterations`: rows of version, the seconds of PHASES, and the rest. `syncs`: rows of
    version and seconds. `incidents`: {what: how often}. `collapse`: {(stage, figure): an alarm or its end}. `solved`:
    {solved game: {stage: its newest measurement}}."""

    clock: Clock
    activity: Activity
    steps: dict[tuple[str, str], Thinned] = field(default_factory=dict)
    stage_begins: dict[str, dict[str, int]] = field(default_factory=dict)
    lags: Thinned = field(default_factory=lambda: Thinned(100))
    max_lag: int = 0
    num_evicted: int = 0
    waited_s: float = 0.0
    iterations: Thinned = field(default_factory=lambda: Thinned(100))
    syncs: dict[str, Thinned] = field(default_factory=dict)
    newest_version: int = 0
    incidents: Counter[str] = field(default_factory=Counter)
    collapse: dict[tuple[str, str], CollapseLine] = field(default_factory=dict)
    solved: dict[str, dict[str, ExploitabilityLine]] = field(default_factory=dict)
    num_unreadable: int = 0

    @property
    def stages(self) -> set[str]:
        """The stages that have been trained on, or in part."""
        return {stage for begins in self.stage_begins.values() for stage in begins}

    def alarmed(self, prefix: str = "") -> set[str]:
        """The stages with an alarm of a figure that begins so: in a run of several games, with its game's name."""
        return {line.stage for line in self.collapse.values() if line.is_alarm and line.figure.startswith(prefix)}

    @property
    def num_steps(self) -> int:
        return sum(curve.num_added for curve in self.steps.values())


def read_measurements(path: Path, max_lag: int = 0) -> Measurements:
    """Reads metrics.jsonl. `max_lag`: the largest age of an episode of a stream, in versions; -1 if nobody knows it,
    and then there are no `lags`."""
    clock = Clock(MetricLines(path).typed())
    found = Measurements(clock, Activity(clock), max_lag=max_lag)
    reader = _Reader(found)
    lines = MetricLines(path)
    for time, line in lines.typed():
        reader.read(time, line)
    found.num_unreadable = lines.num_damaged
    return found


class _Reader:
    """Reads the lines in order and turns running sums into differences between lines."""

    def __init__(self, found: Measurements) -> None:
        self._found = found
        self._looked = found.clock.began
        self._games: dict[tuple[str, str], GamesLine] = {}  # the newest of each phase and game
        self._lags: list[int] | None = []  # None after a resume, which sets the sums back to its checkpoint's
        self._iterated = -1
        self._steps = Steps()

    def read(self, time: float, line: Line | None) -> None:
        match line:
            case StepLine():
                self._step(time, line)
            case GamesLine():
                self._played(time, line)
            case BufferLine():
                self._looked = time
            case StreamLine():
                self._stream(line)
            case IterationLine():
                self._iteration(line)
            case SyncLine(policy=policy, report=sync):
                self._found.syncs.setdefault(policy, Thinned()).add((float(sync.version), _drawn(sync.seconds)))
                self._found.newest_version = max(self._found.newest_version, sync.version)
            case CollapseLine():
                self._found.collapse[line.stage, line.figure] = line
            case ExploitabilityLine():
                # A resumed run measures its stage again.
                self._found.solved.setdefault(line.game, {})[line.stage] = line
            case RestartLine(cause=cause):
                self._found.incidents[f"{line.kind}: {cause}"] += 1
            case (
                ResumedLine()
                | EngineLostLine()
                | EngineJoinedLine()
                | EngineLeftLine()
                | LogDamageLine()
                | SetAsideLine()
            ):
                self._found.incidents[line.kind] += 1
                if isinstance(line, ResumedLine):
                    self._lags = None

    def _step(self, time: float, line: StepLine) -> None:
        stage, report = Stage.parse(line.stage), line.report
        before, number = self._steps.of(line.policy), self._steps.number(line.policy, line.stage, report.step)
        if number > before:  # else a resumed run repeats it
            self._found.stage_begins.setdefault(line.policy, {}).setdefault(str(stage.of_all_policies), number)
            row: Row = (float(number), *(_drawn(getattr(report, name)) for name in STEP_FIELDS))
            self._found.steps.setdefault((line.policy, stage.phase), Thinned()).add(row)
        if math.isfinite(report.seconds):
            self._found.activity.add("learned", report.num_target_tokens, time - report.seconds, time)

    def _played(self, time: float, line: GamesLine) -> None:
        before = self._games.get((line.phase, line.game))
        self._games[line.phase, line.game] = line
        new = line.tokens - (before.tokens if before is not None and line.continues(before) else 0)
        self._found.activity.add(line.phase, new, self._looked, time)

    def _iteration(self, line: IterationLine) -> None:
        if line.version <= self._iterated:  # a resumed run repeats it
            return
        self._iterated = line.version
        parts = [_drawn(value) or 0.0 for value in line.parts.values()]
        rest = max(0.0, (_drawn(line.seconds) or 0.0) - sum(parts))
        self._found.iterations.add((float(line.version), *parts, rest))

    def _stream(self, line: StreamLine) -> None:
        self._found.waited_s += _drawn(line.waited_s) or 0.0
        self._found.num_evicted = line.evicted
        totals = [line.lags.get(lag, 0) for lag in range(self._found.max_lag + 1)]
        before, self._lags = self._lags, totals
        if before is None:  # nothing tells which of these games came before the checkpoint
            return
        if sum(before) > sum(totals):  # the stream began again
            before = []
        new = [after - earlier for after, earlier in zip(totals, before or [0] * len(totals), strict=True)]
        if sum(new) > 0:
            self._found.lags.add((float(line.version), *(count / sum(new) for count in new)))


def _drawn(value: float | None) -> float | None:
    """The value; None, which makes a gap, if it is missing or not finite."""
    return value if value is not None and math.isfinite(value) else None

"""metrics.jsonl -> curves and counts: read twice, line by line, in constant memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from spag_ray.results.metric_lines import MetricLines
from spag_ray.results.report.thinned import Row, Thinned
from spag_ray.stages import Stage

STEP_FIELDS = (
    "loss",
    "kl",
    "entropy",
    "gradient_norm",
    "clip_fraction",
    "gap_mean",
    "attacker_weight",
    "defender_weight",
)
LONGEST_SILENCE_S = 300.0  # before a run is gone on with: anything longer is time in which it did not run
NUM_BINS = 90
MOST = 1e100  # of a number; sums of such numbers are numbers too
_INCIDENTS = ("restart", "resumed", "engine_lost", "engine_joined", "engine_left", "log_damage", "set_aside")
Line = Mapping[str, Any]


@dataclass(frozen=True)
class Clock:
    """When lines were written, in seconds since the epoch; `pauses`: (from, to) in which nothing ran."""

    began: float = 0.0
    ended: float = 0.0
    pauses: tuple[tuple[float, float], ...] = ()

    @property
    def seconds(self) -> float:
        return self.running(self.ended)

    def running(self, time: float) -> float:
        """Seconds that the run had run for at `time`."""
        paused = sum(max(0.0, min(time, end) - begin) for begin, end in self.pauses)
        return max(0.0, min(time, self.ended) - self.began - paused)


class Activity:
    """Tokens by time: what was sampled, by phase, and what was learned. `rates` are tokens per second, [NUM_BINS]."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.bin_s = max(clock.seconds, 1.0) / NUM_BINS
        self._tokens: dict[str, list[float]] = {}

    def add(self, what: str, tokens: float, begin: float, end: float) -> None:
        """Spread evenly over the time in which they came."""
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
    """What the report draws. `steps`: {(policy, phase): rows of the policy's step number and STEP_FIELDS};
    `stage_begins`: {policy: {stage: its first step's number}}; `lags`: rows of version and the share of its episodes by
    how many versions old they were; `syncs`: rows of version and seconds; `incidents`: {what: how often}."""

    clock: Clock
    activity: Activity
    steps: dict[tuple[str, str], Thinned] = field(default_factory=dict)
    stage_begins: dict[str, dict[str, int]] = field(default_factory=dict)
    lags: Thinned = field(default_factory=lambda: Thinned(100))
    max_lag: int = 0
    num_evicted: int = 0
    waited_s: float = 0.0
    syncs: dict[str, Thinned] = field(default_factory=dict)
    newest_version: int = 0
    incidents: Counter[str] = field(default_factory=Counter)
    num_lines: int = 0
    num_unreadable: int = 0

    @property
    def num_steps(self) -> int:
        return sum(curve.num_added for curve in self.steps.values())


def read_measurements(path: Path, max_lag: int = 0) -> Measurements:
    """`max_lag`: of a stream, the most versions that an episode may be old."""
    clock = _clock(path)
    found = Measurements(clock, Activity(clock), max_lag=max_lag)
    reader = _Reader(found)
    lines = MetricLines(path)
    for line in lines.new():
        found.num_lines += 1
        reader.read(line)
    found.num_unreadable = lines.num_damaged
    return found


def number_in(line: Line, name: str) -> float | None:
    """None where there is none, or none that can be drawn."""
    value = line.get(name)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if -MOST <= value <= MOST else None


class _Reader:
    """Takes the lines in order; what is a sum so far becomes what was added since the line before."""

    def __init__(self, found: Measurements) -> None:
        self._found = found
        self._looked = found.clock.began
        self._tokens: dict[str, float] = {}
        self._lags: list[float] = []
        self._num_steps: Counter[str] = Counter()

    def read(self, line: Line) -> None:
        take = {
            "step": self._step,
            "games": self._games,
            "buffer": self._buffer,
            "stream": self._stream,
            "sync": self._sync,
        }.get(line["kind"])
        if take is not None:
            take(line)
        elif line["kind"] in _INCIDENTS:
            name = f"{line['kind']}: {line.get('cause')}" if line["kind"] == "restart" else line["kind"]
            self._found.incidents[name] += 1

    def _step(self, line: Line) -> None:
        policy, stage = str(line.get("policy")), Stage.parse(str(line.get("stage")))
        self._num_steps[policy] += 1
        number = self._num_steps[policy]
        self._found.stage_begins.setdefault(policy, {}).setdefault(str(stage.of_all_policies), number)
        row: Row = (float(number), *(number_in(line, name) for name in STEP_FIELDS))
        self._found.steps.setdefault((policy, stage.phase), Thinned()).add(row)
        tokens, seconds = number_in(line, "num_target_tokens"), number_in(line, "seconds")
        if tokens is not None and seconds is not None:
            self._found.activity.add("learned", tokens, line["time"] - seconds, line["time"])

    def _games(self, line: Line) -> None:
        """Tokens since the buffer's process began; it begins at 0 again when it was started again."""
        phase, tokens = str(line.get("phase")), number_in(line, "tokens") or 0.0
        before = self._tokens.get(phase, 0.0)
        self._tokens[phase] = tokens
        new = tokens - before if tokens >= before else tokens
        self._found.activity.add(phase, new, self._looked, line["time"])

    def _buffer(self, line: Line) -> None:
        self._looked = line["time"]

    def _stream(self, line: Line) -> None:
        self._found.waited_s += number_in(line, "waited_s") or 0.0
        self._found.num_evicted = int(number_in(line, "evicted") or 0)
        totals = [number_in(line, f"lag_{lag}") or 0.0 for lag in range(self._found.max_lag + 1)]
        before = self._lags if self._lags and sum(self._lags) <= sum(totals) else [0.0] * len(totals)
        self._lags = totals
        new = [after - earlier for after, earlier in zip(totals, before, strict=True)]
        if sum(new) > 0:
            self._found.lags.add((number_in(line, "version"), *(count / sum(new) for count in new)))

    def _sync(self, line: Line) -> None:
        version = number_in(line, "version")
        row = (version, number_in(line, "seconds"))
        self._found.syncs.setdefault(str(line.get("policy")), Thinned()).add(row)
        self._found.newest_version = max(self._found.newest_version, int(version or 0))


def _clock(path: Path) -> Clock:
    began = ended = None
    pauses = []
    for line in MetricLines(path).new():
        time = float(line["time"])
        began = time if began is None else began
        if ended is not None and line["kind"] in ("set_aside", "resumed") and time - ended > LONGEST_SILENCE_S:
            pauses.append((ended, time))
        ended = time if ended is None else max(ended, time)
    return Clock() if began is None or ended is None else Clock(began, ended, tuple(pauses))

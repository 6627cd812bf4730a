"""Every metric that a run exports: its name, unit and labels, and which line of metrics.jsonl feeds it.

>>> from spag_ray.results.lines import EngineLostLine
>>> [(update.metric.name, update.labels, update.value) for update in updates(EngineLostLine("engine-0"))]
[('spag_ray_engines_lost_total', {}, 1.0)]

metrics.txt, beside this file, has a row for each: a new metric is a row there. The dashboard (grafana.py) and the table
of docs/metrics.md are made from it. Names follow Prometheus: base units, and counters end in `_total`. Ray adds the
prefix `ray_`. Every series also has the label `run`. cluster/tracking/recorder.py passes the updates to Ray.
"""

from __future__ import annotations

import csv
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple, cast

from spag_ray.game.rules import GAME_ENDS
from spag_ray.results.lines import Line
from spag_ray.stages import Stage

Kind = Literal["counter", "gauge", "histogram"]
Labels = Mapping[str, str]


@dataclass(frozen=True)
class Metric:
    """A row of metrics.txt, or one of its two: a row of the lines `play, stream` has `play_NAME`, of the games of a
    stage, and `stream_NAME`, without the labels phase and game, of those of a stream's newest version.

    `line`: the kind of line that feeds the metric. `field`: the name of the value to take from it; what is in braces
    becomes labels. Without a field each line counts 1. `panel`: row and title of its panel. `is_rare`: the panel shows
    counts of events instead of rates; `is_share`: it stacks the series, as shares of their sum. `at_start`: label sets
    that exist from the start, at 0, for every game if `game` is a label; `guessing_at_start`: more, where facts are
    guessed."""

    kind: Kind
    name: str
    unit: str
    help: str
    line: str
    field: str
    labels: tuple[str, ...]
    panel: str
    is_rare: bool
    is_share: bool
    at_start: tuple[Labels, ...] = ()
    guessing_at_start: tuple[Labels, ...] = ()

    @property
    def exported_name(self) -> str:
        return f"ray_{self.name}"

    @property
    def is_sum(self) -> bool:
        """Whether its lines hold a running sum, of which the increase is counted."""
        return self.kind == "counter" and self.line in ("games", "buffer")

    @property
    def buckets(self) -> tuple[float, ...]:
        """Upper bounds of a histogram, in seconds."""
        if self.kind != "histogram":
            return ()
        return _SHORT_S if self.line == "sync" else _LONG_S

    @cached_property
    def pattern(self) -> str:
        """Of the names of the values to take; its named groups are labels."""
        return re.sub(r"\{(\w+)\}", lambda label: f"(?P<{label[1]}>{_VALUES.get(label[1], _WORD)})", self.field)


@dataclass(frozen=True)
class Update:
    """An update of one series: the increase of a counter (or its running sum), a gauge's value, or an observation."""

    metric: Metric
    labels: dict[str, str]
    value: float


def updates(line: Line) -> list[Update]:
    """The updates that a line of metrics.jsonl causes. Values that are not finite are ignored."""
    found: list[Update] = []
    values = line.values()
    for metric in METRICS:
        if metric.line == line.kind:
            for caught, value in _values(metric, values):
                if isinstance(value, int | float) and math.isfinite(value):
                    labels = {label: caught.get(label) or _label(label, values) for label in metric.labels}
                    found.append(Update(metric, labels, float(value)))
    return found


def _values(metric: Metric, values: Mapping[str, Any]) -> list[tuple[dict[str, str], Any]]:
    if not metric.field:
        return [({}, 1)]
    matches = {name: re.fullmatch(metric.pattern, name) for name in values}
    return [(match.groupdict(), values[name]) for name, match in matches.items() if match is not None]


def _label(label: str, values: Mapping[str, Any]) -> str:
    if label == "phase" and "stage" in values:
        return Stage.parse(values["stage"]).phase
    if label == "part":
        return re.split(r"[-.]", values["what"])[0]  # engine-policy-0.2 is an engine
    return str(values[label])


_PLAYED = [{"phase": phase} for phase in ("imitation", "self_play", "evaluation")]
_PARTS = ("engine", "arena", "buffer", "learners", "evaluation")
_STATES = ("starting", "behind", "playing", "draining", "asleep", "lost", "retired")  # cluster/fleet/roster.py
_CAUSES = ("crash", "stuck", "out of memory")
_EVENTS = ("learner_wait_seconds_total", "mix_ratio", "resumes_total", "log_damage_total", "logs_set_aside_total")
AT_START: dict[str, tuple[Labels, ...]] = {
    **dict.fromkeys((*_EVENTS, *(f"engines_{what}_total" for what in ("joined", "lost", "left"))), ({},)),
    **dict.fromkeys(("turns_total", "tokens_total"), tuple(_PLAYED)),
    "collapse_alarms_total": tuple({"figure": figure} for figure in ("ties", "breaches")),
    "restarts_total": tuple({"part": part, "cause": cause} for part in _PARTS for cause in _CAUSES),
    "engine_changes_total": tuple({"state": state} for state in _STATES),
}
GUESSING_AT_START: dict[str, tuple[Labels, ...]] = {
    "games_total": tuple({**phase, **end.labels} for phase in _PLAYED for end in GAME_ENDS),
    "collapse_alarms_total": ({"figure": "right guesses"},),
}

_WORD = r"\w+"
_VALUES = {"reason": ".+", "figure": ".+", "lag": r"\d+"}  # of labels that are not a word
_SHORT_S = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
_LONG_S = (0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0, 1000.0, 3000.0)


class Row(NamedTuple):
    """A row of metrics.txt; "" for a cell of `-`. `usual_range`, and `remedy` outside it, are for the page alone."""

    name: str
    lines: str
    field: str
    kind: str
    unit: str
    labels: str
    panel: str
    told: str
    usual_range: str
    remedy: str


def rows() -> Iterator[Row]:
    """Those of metrics.txt."""
    lines = Path(__file__).with_name("metrics.txt").read_text(encoding="utf-8").splitlines()
    for cells in csv.reader(lines[1:], delimiter="|", quoting=csv.QUOTE_NONE):
        yield Row(*("" if cell.strip() == "-" else cell.strip() for cell in cells))


def _metrics() -> Iterator[Metric]:
    for row in rows():
        kind, _, shown = row.kind.partition(" ")
        for line in row.lines.split(", "):
            is_second = line == "stream" and row.lines != line
            name = row.name if row.lines == line else f"{line}_{row.name}"
            left_out = ("", "phase", "game") if is_second else ("",)
            yield Metric(
                kind=cast(Kind, kind),
                name=f"spag_ray_{name}",
                unit=row.unit,
                help="the same, of a stream's newest version" if is_second else row.told,
                line=line,
                field=row.field,
                labels=tuple(label for label in row.labels.split(", ") if label not in left_out),
                panel=row.panel,
                is_rare=shown == "rare",
                is_share=shown == "share",
                at_start=AT_START.get(name, ()),
                guessing_at_start=GUESSING_AT_START.get(name, ()),
            )


METRICS = tuple(_metrics())

"""One `record()` for every measurement: a line of metrics.jsonl, curves for TensorBoard and W&B, metrics for
Prometheus."""

from __future__ import annotations

import contextlib
import json
import math
import sys
import threading
import time
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote

import ray
from ray.util import metrics as ray_metrics

from cluster.runtime.output_files import label_of
from cluster.tracking.metric_registry import METRICS, Metric, Update, updates
from cluster.tracking.wandb import WandbRun
from spag_ray.config.parts import TrackingConfig
from spag_ray.errors import RunFolderError
from spag_ray.game.rules import Role
from spag_ray.host.libraries import hidden
from spag_ray.results.curves import Curves
from spag_ray.results.game_names import UNKNOWN, NamesByGame, names_of_all
from spag_ray.results.lines import Line, parse_line
from spag_ray.results.metric_lines import MetricLines

if TYPE_CHECKING:  # imports TensorBoard
    from cluster.tracking.tensorboard import EventFile

Drawer: TypeAlias = "EventFile | WandbRun"  # draws curves; both raise OSError if they fail
MAX_KEPT = 1000  # newest lines of each kind, kept for queries


class Recorder:
    """Appends to metrics.jsonl; each line has `time` (seconds since the epoch), `kind`, and the values. Updates Ray's
    metrics from the line if Ray is running, and passes its curves to TensorBoard and W&B. Thread-safe. If one of these
    two fails, it is dropped, and `note` is called with the reason. `check` raises LeaseLostError if another run holds
    the folder; then nothing is written. `games`: the names of those that are played. `hear` gets each line, too."""

    def __init__(
        self,
        folder: Path,
        tracking: TrackingConfig | None = None,
        note: Callable[[str], None] = lambda text: None,
        check: Callable[[], None] = lambda: None,
        games: NamesByGame = UNKNOWN,
        hear: Callable[[Line], None] = lambda line: None,
    ) -> None:
        check()
        self._check = check
        self._hear = hear
        self._path = folder / "metrics.jsonl"
        self._lock = threading.Lock()
        self._note = note
        self._exporter = Exporter(label_of(folder), games) if ray.is_initialized() else None
        self._kept: dict[str | None, deque[str]] = defaultdict(lambda: deque(maxlen=MAX_KEPT))
        self._curves = Curves()
        self._drawers: dict[str, Drawer] = {}
        tracking = tracking or TrackingConfig(tensorboard=False)
        if tracking.tensorboard:
            self._open("TensorBoard", lambda: _event_file(folder))
        for raw in MetricLines(self._path).new():  # of previous attempts
            self._keep(raw["kind"], json.dumps(raw))
            with contextlib.suppress(TypeError, ValueError):  # a malformed line draws nothing
                self._draw(raw["time"], parse_line(raw))
        if (wandb := tracking.wandb) is not None:  # after the loop: the service has the old lines
            self._open("Weights & Biases", lambda: WandbRun(folder, wandb))
        self._file = self._path.open("a", encoding="utf-8")
        self._end_torn_line()

    def record(self, line: Line) -> None:
        """Writes a number that is not finite as null, because JSON has no such numbers. Raises RunFolderError if the
        file cannot be written, for example because the disk is full."""
        now = round(time.time(), 3)
        values = {name: _finite(value) for name, value in line.values().items()}
        text = json.dumps({"time": now, "kind": line.kind, **values})
        self._check()
        with self._lock:
            try:
                self._file.write(text + "\n")
                self._file.flush()
            except OSError as error:
                raise RunFolderError(
                    f"{self._path}: cannot be written ({error.strerror}); free disk space, and continue with --resume"
                ) from error
            self._keep(line.kind, text)
            self._draw(now, line)
            if self._exporter is not None:
                for update in updates(line):
                    self._exporter.take(update)
        self._hear(line)

    @property
    def num_steps(self) -> int:
        """Optimiser steps so far, of all attempts, of the policy with the most."""
        with self._lock:
            return self._curves.num_steps

    def last(self, kind: str | None, count: int) -> list[dict[str, Any]]:
        """The last `count` lines (at most MAX_KEPT) of one kind, or of all if `kind` is None; the newest is last."""
        with self._lock:
            texts = list(self._kept[kind]) if kind in self._kept else []
        return [json.loads(text) for text in texts[max(0, len(texts) - count) :]]

    def close(self) -> None:
        with self._lock:
            for name in list(self._drawers):
                self._given_to(name, lambda drawer: drawer.close())
            self._drawers = {}
            self._file.close()

    def _open(self, name: str, make: Callable[[], Drawer]) -> None:
        try:
            self._drawers[name] = make()
        except Exception as error:  # of another's library
            self._note(f"{name} is off: {error}; metrics.jsonl has everything")

    def _keep(self, kind: str, text: str) -> None:
        self._kept[kind].append(text)
        self._kept[None].append(text)

    def _draw(self, at: float, line: Line | None) -> None:
        if (points := self._curves.points(at, line)) is not None:
            for name in list(self._drawers):
                self._given_to(name, lambda drawer: drawer.write(points))

    def _given_to(self, name: str, give: Callable[[Drawer], None]) -> None:
        """Drops a drawer that fails. The run continues: curves can be drawn again from metrics.jsonl."""
        try:
            give(self._drawers[name])
        except Exception as error:
            del self._drawers[name]
            self._note(f"{name} is off from now on: {error}; metrics.jsonl has everything")

    def _end_torn_line(self) -> None:
        """Ends a partial line that a crash left, so that it does not damage the next line."""
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - 1))
            is_torn = size > 0 and file.read(1) != b"\n"
        if is_torn:
            self._file.write("\n")


def rays(metric: Metric) -> Any:
    """The counterpart of a metric in ray.util.metrics."""
    labels = ("run", *metric.labels)
    if metric.kind == "counter":
        return ray_metrics.Counter(metric.name, metric.help, labels)
    if metric.kind == "gauge":
        return ray_metrics.Gauge(metric.name, metric.help, labels)
    return ray_metrics.Histogram(metric.name, metric.help, list(metric.buckets), labels)


def in_ascii(text: str) -> str:
    """A label's value as Ray takes it: only ASCII. Others are written as in an address, so different names stay so.

    >>> in_ascii("größe 1")
    'gr%C3%B6%C3%9Fe 1'
    """
    return "".join(each if each.isascii() else quote(each, errors="surrogateescape") for each in text)


class Exporter:
    """The registry's metrics as metrics of Ray, which Prometheus scrapes, with the label `run`. The label `seat` has
    the names of its game, or names that fit all games. If a running sum decreases, its source was restarted: only
    increases from the new value on are counted."""

    def __init__(self, run: str, games: NamesByGame, make: Callable[[Metric], Any] = rays) -> None:
        self._run = run
        self._games = games
        self._together = names_of_all(games)
        self._rays = {metric.name: make(metric) for metric in METRICS}
        self._sums: dict[tuple[str, ...], float] = {}
        for metric in METRICS:
            for game, names in games.items():
                which = {"game": game} if "game" in metric.labels else {}
                for labels in (*metric.at_start, *(metric.guessing_at_start if names.guesses else ())):
                    self.take(Update(metric, {**which, **labels}, 0.0))

    def take(self, update: Update) -> None:
        metric, tags = update.metric, {**update.labels, "run": self._run}
        if (seat := tags.get("seat")) in tuple(Role):
            tags["seat"] = self._games.get(tags.get("game", ""), self._together).seat(Role(seat))
        tags = {label: in_ascii(value) for label, value in tags.items()}
        if metric.kind == "gauge":
            self._rays[metric.name].set(update.value, tags)
        elif metric.kind == "histogram":
            self._rays[metric.name].observe(update.value, tags)
        else:
            self._count(metric, tags, update.value)

    def _count(self, metric: Metric, tags: dict[str, str], value: float) -> None:
        series = (metric.name, *(tags[label] for label in metric.labels))
        before = self._sums.get(series)
        self._sums[series] = value
        rise = value - (before or 0.0) if metric.is_sum else value
        if rise > 0:
            self._rays[metric.name].inc(rise, tags)
        elif before is None:  # Ray ignores an increase of 0; this tiny one creates the series
            self._rays[metric.name].inc(sys.float_info.min, tags)


def _event_file(folder: Path) -> EventFile:
    with hidden("torch"):  # tensorboardX would import it: 2 s, for tensors that nobody gives to it
        from cluster.tracking.tensorboard import EventFile

    return EventFile(folder)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

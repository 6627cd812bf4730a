"""One `record()` for everything that is measured: a line of JSON in the run folder, and metrics for Prometheus."""

from __future__ import annotations

import json
import math
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ray
from ray.util import metrics as ray_metrics

from cluster.metric_registry import METRICS, Metric, Update, updates


class Metrics:
    """Appends to metrics.jsonl; each line has `time` (seconds since the epoch), `kind`, and the values. Ray, if there
    is one, is told what the line says of the registry's metrics. Any thread may call."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "metrics.jsonl").open("a", encoding="utf-8")
        self._lock = threading.Lock()
        self._exporter = Exporter(folder.name) if ray.is_initialized() else None

    def record(self, kind: str, **values: str | int | float) -> None:
        """A number that is not finite is written as null: JSON has no word for it."""
        values = {key: _finite(value) for key, value in values.items()}
        line = json.dumps({"time": round(time.time(), 3), "kind": kind, **values}) + "\n"
        with self._lock:
            self._file.write(line)
            self._file.flush()
            if self._exporter is not None:
                for update in updates(kind, values):
                    self._exporter.take(update)

    def close(self) -> None:
        self._file.close()


def rays(metric: Metric) -> Any:
    """Its counterpart in ray.util.metrics."""
    labels = ("run", *metric.labels)
    if metric.kind == "counter":
        return ray_metrics.Counter(metric.name, metric.help, labels)
    if metric.kind == "gauge":
        return ray_metrics.Gauge(metric.name, metric.help, labels)
    return ray_metrics.Histogram(metric.name, metric.help, list(metric.buckets), labels)


class Exporter:
    """The registry's metrics as Ray's, with the label `run`. A sum that has fallen was begun anew by somebody who lost
    count: it goes on from there."""

    def __init__(self, run: str, make: Callable[[Metric], Any] = rays) -> None:
        self._run = run
        self._rays = {metric.name: make(metric) for metric in METRICS}
        self._sums: dict[tuple[str, ...], float] = {}
        for metric in METRICS:
            for labels in metric.at_start:
                self.take(Update(metric, dict(labels), 0.0))

    def take(self, update: Update) -> None:
        metric, tags = update.metric, {**update.labels, "run": self._run}
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
        elif before is None:  # Ray counts nothing up by 0; this adds nothing to any number, and the series is there
            self._rays[metric.name].inc(sys.float_info.min, tags)


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

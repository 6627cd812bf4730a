"""The registry's metrics as metrics of Ray, which Prometheus scrapes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any
from urllib.parse import quote

from ray.util import metrics as ray_metrics

from cluster.tracking.metric_registry import METRICS, Metric, Update
from spag_ray.game.rules import Role
from spag_ray.results.game_names import NamesByGame, names_of_all


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
    """The registry's metrics as metrics of Ray, with the label `run`. The label `seat` has the names of its game, or
    names that fit all games. If a running sum decreases, its source was restarted: only increases from the new value on
    are counted."""

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

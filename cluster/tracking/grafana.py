"""The registry's metrics as a Grafana dashboard, in the panels that metrics.txt names.

The query of a panel depends on its metrics' kind:

    counter    its rate per second; for rare events, its increase within the window
    gauge      its value
    histogram  median and 95th percentile within the window

The JSON follows Grafana's classic model. The data source, the runs and the window are chosen on the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from cluster.tracking.metric_registry import METRICS, Metric
from spag_ray.host.whole_files import new_file

UID = "spag-ray"
WINDOWS = ("1m", "5m", "15m", "1h", "6h")
WIDTH, HEIGHT, PER_ROW = 8, 8, 3  # in grid units; a page is 24 wide
QUANTILES = (0.5, 0.95)
_UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "none", "": "none", "versions": "none"}
_RATES = {"seconds": "percentunit", "bytes": "Bps"}  # seconds per second are a fraction of time


@dataclass(frozen=True)
class Panel:
    """Metrics of one kind and unit. `by`: the labels to group by (all if None)."""

    title: str
    metrics: tuple[Metric, ...]
    by: tuple[str, ...] | None = None
    is_share: bool = False


def panels() -> dict[str, list[Panel]]:
    """{row: its panels}, in the order of metrics.txt; games have two more, by how they ended."""
    metrics: dict[str, list[Metric]] = {}
    for metric in METRICS:
        metrics.setdefault(metric.panel, []).append(metric)
    rows: dict[str, list[Panel]] = {}
    for place, members in metrics.items():
        row, _, title = place.partition(" / ")
        rows.setdefault(row, []).append(Panel(title, tuple(members), is_share=members[0].is_share))
    games, *others = rows["Play"]
    ends = ("seat", "result", "reason")
    rows["Play"] = [
        replace(games, by=("phase",)),
        replace(games, title="Games by seat and result", by=("phase", *ends[:2]), is_share=True),
        replace(games, title="Games by reason", by=ends, is_share=True),
        *others,
    ]
    return rows


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    drawn: list[dict[str, Any]] = []
    top = 0
    for row, members in panels().items():
        drawn.append(_row(row, top, len(drawn) + 1))
        top += 1
        for place, panel in enumerate(members):
            at = {"x": WIDTH * (place % PER_ROW), "y": top + HEIGHT * (place // PER_ROW), "w": WIDTH, "h": HEIGHT}
            drawn.append(_panel(panel, at, len(drawn) + 1))
        top += HEIGHT * -(-len(members) // PER_ROW)
    return {
        "id": None,
        "uid": UID,
        "title": "spag_ray",
        "description": "Runs of adversarial self-play: play, learning, weight syncs, failures.",
        "tags": ["spag_ray", "ray"],
        "timezone": "browser",
        "editable": True,
        "graphTooltip": 1,
        "schemaVersion": 41,
        "version": 1,
        "refresh": "10s",
        "time": {"from": "now-30m", "to": "now"},
        "timepicker": {},
        "annotations": {"list": []},
        "links": [],
        "templating": {"list": _variables()},
        "panels": drawn,
    }


def write_dashboard(out: Path, console: Console) -> None:
    """`spag-ray dashboard`. Raises InputError if `out` exists or cannot be written."""
    with new_file(out) as file:
        file.write(as_text())
    console.print(f"dashboard in {out}: in Grafana, Dashboards > New > Import", soft_wrap=True, markup=False)


def as_text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


def queries(panel: Panel) -> list[tuple[str, str]]:
    """(PromQL, legend) for each line of a panel."""
    found = []
    for metric in panel.metrics:
        labels = ("run", *(metric.labels if panel.by is None else panel.by))
        series = f'{metric.exported_name}%s{{run=~"$run"}}'
        short = metric.name.removeprefix("spag_ray_").removesuffix("_total")
        legend = " ".join(f"{{{{{label}}}}}" for label in labels)
        if len(panel.metrics) > 1:
            legend = f"{short} {legend}"
        by = ", ".join(labels)
        if metric.kind == "gauge":
            found.append((f"max by ({by}) ({series % ''})", legend))
        elif metric.kind == "counter":
            rise = "increase" if metric.is_rare else "rate"
            found.append((f"sum by ({by}) ({rise}({series % ''}[$window]))", legend))
        else:
            for quantile in QUANTILES:
                buckets = f"sum by (le, {by}) (rate({series % '_bucket'}[$window]))"
                found.append((f"histogram_quantile({quantile}, {buckets})", f"{quantile:.0%} {legend}"))
    return found


def _panel(panel: Panel, at: dict[str, int], number: int) -> dict[str, Any]:
    # Gaps are connected, so that a value with one point per version is drawn as a line.
    custom: dict[str, Any] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "spanNulls": True}
    if panel.is_share:
        custom |= {"stacking": {"mode": "percent", "group": "A"}, "fillOpacity": 60}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": "; ".join(metric.help for metric in panel.metrics),
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": _unit(panel.metrics[0]), "custom": custom}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": [
            {
                "refId": chr(ord("A") + place),
                "datasource": _SOURCE,
                "expr": query,
                "legendFormat": legend,
                "range": True,
            }
            for place, (query, legend) in enumerate(queries(panel))
        ],
    }


def _unit(metric: Metric) -> str:
    """Grafana's name of the unit."""
    if metric.kind == "counter" and not metric.is_rare:
        return _RATES.get(metric.unit, f"suffix: {metric.unit}/s")
    return _UNITS.get(metric.unit, f"suffix: {metric.unit}")


def _row(title: str, top: int, number: int) -> dict[str, Any]:
    at = {"x": 0, "y": top, "w": WIDTH * PER_ROW, "h": 1}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": at, "panels": []}


def _variables() -> list[dict[str, Any]]:
    of_runs = f"label_values({METRICS[0].exported_name}, run)"
    return [
        {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "hide": 0},
        {
            "name": "run",
            "label": "Run",
            "type": "query",
            "datasource": _SOURCE,
            "definition": of_runs,
            "query": {"query": of_runs, "refId": "runs"},
            "refresh": 2,
            "sort": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".+",
            "current": {"text": ["All"], "value": ["$__all"]},
        },
        {
            "name": "window",
            "label": "Window",
            "type": "interval",
            "query": ",".join(WINDOWS),
            "options": [{"text": each, "value": each, "selected": each == WINDOWS[0]} for each in WINDOWS],
            "current": {"text": WINDOWS[0], "value": WINDOWS[0]},
            "auto": False,
        },
    ]


_SOURCE = {"type": "prometheus", "uid": "${datasource}"}

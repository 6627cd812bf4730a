"""The registry's metrics as a Grafana dashboard: rows of panels. The query of a panel depends on its metrics' kind:

    counter    its rate per second; for rare events, its increase within the window
    gauge      its value
    histogram  median and 95th percentile within the window

The JSON follows Grafana's classic model. The data source, the runs and the window are chosen on the page.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from cluster.runtime.output_files import refuse_existing
from cluster.tracking.metric_registry import METRICS, Metric
from spag_ray.errors import InputError

UID = "spag-ray"
WINDOWS = ("1m", "5m", "15m", "1h", "6h")
WIDTH, HEIGHT, PER_ROW = 8, 8, 3  # in grid units; a page is 24 wide
QUANTILES = (0.5, 0.95)
_UNITS = {"seconds": "s", "bytes": "bytes", "ratio": "none", "": "none", "versions": "none"}
_RATES = {"seconds": "percentunit", "bytes": "Bps"}  # seconds per second are a fraction of time


@dataclass(frozen=True)
class Panel:
    """Metrics of one kind and unit, named without `spag_ray_`. `by`: the labels to group by (all if None); `rare`:
    shows counts of events instead of rates; `shares`: stacks the series, as shares of their sum."""

    title: str
    metrics: tuple[str, ...]
    by: tuple[str, ...] | None = None
    rare: bool = False
    shares: bool = False


PANELS: dict[str, tuple[Panel, ...]] = {
    "Play": (
        Panel("Games", ("games_total",), ("phase",)),
        Panel("Games by seat and result", ("games_total",), ("phase", "seat", "result"), shares=True),
        Panel("Games by reason", ("games_total",), ("seat", "result", "reason"), shares=True),
        Panel("Turns", ("turns_total",)),
        Panel("Tokens sampled", ("tokens_total",)),
        Panel("Tokens sampled per GPU", ("play_gpu_tokens_per_second", "stream_gpu_tokens_per_second")),
        Panel("Reward by seat", ("play_reward_mean", "stream_reward_mean")),
        Panel("Its standard deviation", ("play_reward_std", "stream_reward_std")),
        Panel("Wins by seat", ("play_win_ratio", "stream_win_ratio")),
        Panel("Ties, breaches", ("play_tie_ratio", "stream_tie_ratio", "play_breach_ratio", "stream_breach_ratio")),
        Panel(
            "Tokens of a turn", tuple(f"{of}_reply_{n}_tokens" for of in ("play", "stream") for n in ("mean", "max"))
        ),
        Panel("Turns cut off", ("play_truncated_ratio", "stream_truncated_ratio")),
        Panel("Groups that agree, and those played instead", ("groups_dropped", "groups_refilled")),
        Panel("Wrong guesses that ended nothing", ("play_early_guesses", "stream_early_guesses")),
        Panel(
            "What the listener knows",
            tuple(f"{of}_{n}_ratio" for of in ("play", "stream") for n in ("listener", "gain")),
        ),
        Panel("Games that it did not score", ("play_unscored_games", "stream_unscored_games")),
    ),
    "Iterations": (
        Panel("Where an iteration's time goes", ("iteration_activity_seconds",)),
        Panel("Seconds an iteration", ("iteration_seconds",)),
        Panel("Optimiser steps", ("optimiser_steps",)),
    ),
    "Buffer": (
        Panel("Waiting episodes", ("buffer_episodes",)),
        Panel("Age of the oldest", ("buffer_age_seconds",)),
        Panel("Staleness: versions behind when trained on", ("episodes_learned_total",), shares=True),
        Panel("Staleness of a version's games", ("staleness_mean_versions", "staleness_max_versions")),
        Panel("Permits", ("permits",)),
        Panel("Games of the stream started", ("stream_games_begun_total",)),
        Panel("Games lost", ("stream_games_lost_total",), rare=True),
        Panel("Episodes evicted, repeated", ("episodes_evicted_total", "episodes_repeated_total"), rare=True),
        Panel("Learner waits for games", ("learner_wait_seconds_total",)),
    ),
    "Engines": (
        Panel("KV cache in use", ("engine_kv_cache_mean_ratio", "engine_kv_cache_max_ratio")),
        Panel("Requests preempted", ("engine_preemptions_total",), rare=True),
        Panel("Prompt tokens cached", ("engine_prefix_hit_ratio",)),
        Panel("Requests", tuple(f"engine_{n}_requests" for n in ("running_mean", "running_max", "waiting_max"))),
        Panel("Busy", ("engine_busy_ratio", "engine_gpu_busy_ratio")),
        Panel("GPU memory", ("engine_gpu_memory_bytes",)),
    ),
    "Learner": (
        Panel(
            "Loss terms",
            (
                "loss",
                "policy_loss",
                "kl_loss",
                "sft_loss",
                "listening_loss",
                "claiming_loss",
                "unsaid_loss",
                "entropy_bonus_loss",
            ),
        ),
        Panel("KL and entropy", ("kl_nats", "approx_kl_nats", "entropy_nats")),
        Panel("Advantages", ("advantage_mean", "advantage_std")),
        Panel("Turns without an advantage", ("advantage_zeros_ratio",)),
        Panel("Tokens of a trained turn", ("turn_mean_tokens", "turn_max_tokens")),
        Panel("Surprisal of the word", ("listening_nats",)),
        Panel("Games listened to", ("listened_games",)),
        Panel("Importance ratio", ("importance_mean_ratio", "importance_max_ratio")),
        Panel("Clipped", ("clipped_ratio", "clipped_low_ratio", "clipped_high_ratio")),
        Panel("Gradient norm", ("gradient_norm",)),
        Panel("Learning rate", ("learning_rate",)),
        Panel("Role weights", ("role_weight",)),
        Panel("Steps", ("learner_steps_total", "learner_skipped_steps_total"), rare=True),
        Panel("Seconds a step", ("learner_step_seconds",)),
        Panel("Forward and backward", ("learner_compute_seconds_total",)),
        Panel("Tokens computed", ("learner_tokens_per_second", "learner_gpu_tokens_per_second")),
        Panel("Model FLOPs utilisation", ("learner_mfu_ratio",)),
        Panel("Learner's GPU memory", ("learner_gpu_memory_bytes",)),
        Panel("Tokens trained on, computed", ("learner_target_tokens_total", "learner_computed_tokens_total")),
    ),
    "Engines and learner": (
        Panel("Mismatch", ("mismatch_ratio",)),
        Panel("Capped weights", ("mismatch_capped_ratio",)),
        Panel("Mismatch in nats", ("mismatch_mean_nats", "mismatch_max_nats", "mismatch_k3_nats")),
        Panel("Probe after a sync", ("probe_mean_nats", "probe_max_nats")),
        Panel("Version", ("policy_version",)),
        Panel("Seconds a sync", ("sync_seconds",)),
        Panel("Bytes to each engine", ("sync_bytes_total",), rare=True),
        Panel("Failed broadcasts", ("sync_broken_channels_total",), rare=True),
        Panel("Engines in the newest sync", ("sync_engines",)),
    ),
    "Held-out words": (
        Panel("Guesses and traps", ("right_guess_ratio", "trap_ratio")),
        Panel("Could have known", ("could_have_known_ratio",)),
        Panel("Could have known, in nats", ("could_have_known_nats",)),
        Panel("Collapse: alarms", ("collapse_alarms_total",), rare=True),
        Panel("Games against frozen opponents", ("mix_ratio",)),
    ),
    "Matches": (Panel("Elo against the first stage", ("elo",)), Panel("Elo by seat", ("elo_of_seat",))),
    "Solved games": (Panel("Exploitability", ("exploitability",)),),
    "Tasks": (Panel("Scores", ("task_score",)),),
    "Faults and checkpoints": (
        Panel("Restarts", ("restarts_total",), rare=True),
        Panel("Engines", ("engines_joined_total", "engines_lost_total", "engines_left_total"), rare=True),
        Panel("Changes of engines' states", ("engine_changes_total",), ("state",), rare=True),
        Panel("Resumes from a checkpoint", ("resumes_total",), rare=True),
        Panel("Logs damaged", ("log_damage_total",), rare=True),
        Panel("Logs set aside", ("logs_set_aside_total",), rare=True),
        Panel("Seconds a checkpoint", ("checkpoint_seconds",)),
        Panel("Bytes of the newest checkpoint", ("checkpoint_bytes",)),
    ),
}


def dashboard() -> dict[str, Any]:
    """The dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for row, members in PANELS.items():
        panels.append(_row(row, top, len(panels) + 1))
        top += 1
        for place, panel in enumerate(members):
            at = {"x": WIDTH * (place % PER_ROW), "y": top + HEIGHT * (place // PER_ROW), "w": WIDTH, "h": HEIGHT}
            panels.append(_panel(panel, at, len(panels) + 1))
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
        "panels": panels,
    }


def write_dashboard(out: Path, console: Console) -> None:
    """`spag-ray dashboard`. Raises InputError if `out` exists or cannot be written."""
    refuse_existing(out)
    try:
        out.write_text(as_text(), encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}; choose another place") from error
    console.print(f"dashboard in {out}: in Grafana, Dashboards > New > Import", soft_wrap=True, markup=False)


def as_text() -> str:
    return json.dumps(dashboard(), indent=1) + "\n"


def queries(panel: Panel) -> list[tuple[str, str]]:
    """(PromQL, legend) for each line of a panel."""
    found = []
    for metric in _metrics(panel):
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
            rise = "increase" if panel.rare else "rate"
            found.append((f"sum by ({by}) ({rise}({series % ''}[$window]))", legend))
        else:
            for quantile in QUANTILES:
                buckets = f"sum by (le, {by}) (rate({series % '_bucket'}[$window]))"
                found.append((f"histogram_quantile({quantile}, {buckets})", f"{quantile:.0%} {legend}"))
    return found


def _metrics(panel: Panel) -> list[Metric]:
    return [_BY_NAME[f"spag_ray_{name}"] for name in panel.metrics]


def _panel(panel: Panel, at: dict[str, int], number: int) -> dict[str, Any]:
    metrics = _metrics(panel)
    # Gaps are connected, so that a value with one point per version is drawn as a line.
    custom: dict[str, Any] = {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 10, "spanNulls": True}
    if panel.shares:
        custom |= {"stacking": {"mode": "percent", "group": "A"}, "fillOpacity": 60}
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": "; ".join(metric.help for metric in metrics),
        "datasource": _SOURCE,
        "gridPos": at,
        "fieldConfig": {"defaults": {"unit": _unit(panel, metrics[0]), "custom": custom}, "overrides": []},
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


def _unit(panel: Panel, metric: Metric) -> str:
    """Grafana's name of the unit."""
    if metric.kind == "counter" and not panel.rare:
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
_BY_NAME = {metric.name: metric for metric in METRICS}

"""Throughput over time, where iterations' time goes, the age of episodes in training, how long weight syncs take."""

from __future__ import annotations

from statistics import fmean
from typing import Any

from spag_ray.results.lines import PHASES
from spag_ray.results.report.figure import SERIES, Figure, bars, column, legend_of, line, numbered, stacked
from spag_ray.results.report.measurements import NUM_BINS, Measurements

# Games to imitate are not here: nobody sampled their tokens.
PHASE_COLOURS = {"self_play": "--series-1", "evaluation": "--series-4", "learned": "--ink"}
PART_COLOURS = ("--series-1", "--lag-1", "--series-2", "--lag-2", "--series-4", "--lag-3", "--rule-strong")
PHASE_NAMES = {"self_play": "self-play"}


def pace_figures(measured: Measurements) -> list[Figure]:
    """The figures for which the run has data."""
    found = (_throughput(measured), _iterations(measured), _staleness(measured), _syncs(measured))
    return [figure for figure in found if figure is not None]


def _throughput(measured: Measurements) -> Figure | None:
    rates = {what: values for what, values in measured.activity.rates.items() if what in PHASE_COLOURS and any(values)}
    if not rates:
        return None
    middles = [(place + 0.5) * measured.activity.bin_s / 60 for place in range(NUM_BINS)]
    minutes = [round(minute, 3) for minute in middles]
    data: list[dict[str, Any]] = []
    for what, colour in PHASE_COLOURS.items():
        if what in rates:
            is_play = what != "learned"
            name = f"sampled: {PHASE_NAMES.get(what, what)}" if is_play else "learned"
            trace = line(minutes, [round(rate, 1) for rate in rates[what]], name, colour)
            trace["line"] = {"color": colour, "width": 1 if is_play else 1.5, "shape": "hvh"}
            trace["hovertemplate"] = "%{y:.0f} tokens/s<extra>" + name + "</extra>"
            data.append(trace | {"stackgroup": "sampled"} if is_play else trace)
    layout = {"xaxis": {"title": {"text": "minutes"}, "rangemode": "tozero"}, "yaxis": {"rangemode": "tozero"}}
    most = max((max(values) for what, values in rates.items() if what != "learned"), default=0.0)
    summary = f"Tokens per second over the time of the run; {f'at most {most:.0f}' if most else 'none'} sampled."
    return Figure("throughput", "Tokens per second", summary, data, layout, legend=legend_of(data))


def _iterations(measured: Measurements) -> Figure | None:
    rows = measured.iterations.rows()
    if not rows:
        return None
    versions, data = column(rows, 0), []
    for place, (part, colour) in enumerate(zip((*PHASES, "other"), PART_COLOURS, strict=True), start=1):
        seconds = [round(value or 0.0, 3) for value in column(rows, place)]
        data.append(bars(versions, seconds, part, colour, "%{y:.1f} s<extra>" + part + "</extra>"))
    layout = stacked("version", versions, {"rangemode": "tozero"})
    sums = {trace["name"]: sum(trace["y"]) for trace in data}
    total = sum(sums.values()) or 1.0
    shares = ", ".join(f"{part} {seconds / total:.0%}" for part, seconds in sums.items() if seconds)
    summary = f"Of all iterations: {shares}."
    legend = legend_of(trace for trace in data if sums[trace["name"]])
    note = "seconds of what the run waited for; in a stream engines play meanwhile"
    return Figure(
        "iterations", "Where an iteration's time goes", summary, data=data, layout=layout, note=note, legend=legend
    )


def _staleness(measured: Measurements) -> Figure | None:
    rows = measured.lags.rows()
    if not rows:
        return None
    shades = ("--lag-0", "--lag-1", "--lag-2", "--lag-3")
    versions, data = column(rows, 0), []
    for lag in range(measured.max_lag + 1):
        shares = [100 * (value or 0.0) for value in column(rows, 1 + lag)]
        name, colour = f"{lag} version{'' if lag == 1 else 's'}", shades[min(lag, len(shades) - 1)]
        data.append(bars(versions, shares, name, colour, "%{y:.0f}%<extra>" + str(lag) + "</extra>"))
    layout = stacked("version", versions, {"range": [0, 100], "ticksuffix": "%"})
    mean = fmean(sum(lag * (share or 0.0) for lag, share in enumerate(row[1:])) for row in rows)
    summary = f"Episodes were {mean:.2f} versions old on average when they were trained on."
    note = "versions between play and training"
    return Figure("staleness", "Staleness", summary, data=data, layout=layout, note=note, legend=legend_of(data))


def _syncs(measured: Measurements) -> Figure | None:
    data = [
        line(column(curve.rows(), 0), column(curve.rows(), 1), policy, SERIES[place % len(SERIES)])
        for place, (policy, curve) in enumerate(measured.syncs.items())
    ]
    seconds = [value for trace in data for value in trace["y"] if value is not None]
    if len(seconds) < 2:
        return None
    versions = [version for trace in data for version in trace["x"]]
    layout = {"xaxis": numbered("version", versions), "yaxis": {"rangemode": "tozero"}}
    legend = legend_of(data)
    summary = f"Seconds until every engine has a version: {min(seconds):.2f} to {max(seconds):.2f}."
    note = "seconds until every engine has a version"
    shown = legend if len(legend) > 1 else ()
    return Figure("syncs", "Weights to the engines", summary, data=data, layout=layout, note=note, legend=shown)

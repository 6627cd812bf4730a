"""Figures of training: curves of the learner's optimiser steps, and the pace of the run: throughput, where an
iteration's time goes, the age of episodes, how long weight syncs take.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

from spag_ray.game.rules import Role
from spag_ray.results.game_names import GameNames
from spag_ray.results.lines import PHASES
from spag_ray.results.report.figure import (
    MARK,
    SERIES,
    Figure,
    as_label,
    bars,
    column,
    legend_of,
    line,
    numbered,
    stacked,
)
from spag_ray.results.report.measurements import NUM_BINS, STEP_FIELDS, Measurements
from spag_ray.stages import Stage

MOST_STAGES = 40
MOST_STAGE_NAMES = 8
# Games to imitate are not here: nobody sampled their tokens.
PHASE_COLOURS = {"self_play": "--series-1", "evaluation": "--series-4", "learned": "--ink"}
PART_COLOURS = ("--series-1", "--lag-1", "--series-2", "--lag-2", "--series-4", "--lag-3", "--rule-strong")
PHASE_NAMES = {"self_play": "self-play"}


@dataclass(frozen=True)
class Curve:
    """Fields of a step that are drawn together, in the phases in which they are meaningful."""

    name: str
    title: str
    fields: tuple[str, ...]
    phases: tuple[str, ...]
    note: str = ""
    from_zero: bool = True


_LEARNED = ("self_play", "learn", "other")
LEARNING = (
    Curve("imitation-loss", "Imitation: loss", ("loss",), ("imitation",), from_zero=False),
    Curve("loss", "Self-play: loss", ("loss",), _LEARNED, "policy, KL and SFT terms together", from_zero=False),
    Curve("listening", "Surprisal of the word", ("listening_nats",), ("imitation", *_LEARNED), "nats per token"),
    Curve("kl", "Divergence from the reference", ("kl",), _LEARNED, "nats per token"),
    Curve("entropy", "Entropy", ("entropy",), ("imitation", *_LEARNED), "nats per token", from_zero=False),
    Curve("gradient-norm", "Gradient norm", ("gradient_norm",), ("imitation", *_LEARNED), "before clipping"),
    Curve(
        "role-weights",
        "Weight of each role's games",
        ("attacker_weight", "defender_weight"),
        _LEARNED,
        "0: the role won no game of the step",
    ),
)
MISMATCH = (
    Curve("mismatch", "Engine against learner", ("gap_mean",), _LEARNED, "difference of log-probabilities, mean, nats"),
    Curve("clipped", "Clipped tokens", ("clip_fraction",), _LEARNED, "share of a step's tokens"),
)


def step_figures(measured: Measurements, curves: Sequence[Curve], game: GameNames) -> list[Figure]:
    """The `curves` for which the run has more than one step, over the number of the step."""
    return [figure for curve in curves if (figure := _figure(measured, curve, game)) is not None]


def _figure(measured: Measurements, curve: Curve, game: GameNames) -> Figure | None:
    data = [trace for name in curve.fields for trace in _traces(measured, curve, name, game)]
    if not data:
        return None
    first, last = min(trace["x"][0] for trace in data), max(trace["x"][-1] for trace in data)
    first_begins, *others = measured.stage_begins.values()
    # Two policies may take different numbers of steps in a stage: a mark could stand at the place of one alone.
    all_begins = [each for each in first_begins.items() if all(each in other.items() for other in others)]
    begins = {stage: number for stage, number in all_begins if Stage.parse(stage).phase in curve.phases}
    layout = {
        "xaxis": numbered("step", (first, last)),
        "yaxis": {"rangemode": "tozero" if curve.from_zero else "normal"},
        **_stage_marks(begins, last, measured.alarmed()),
    }
    legend = legend_of(data)
    ends = [(trace["y"][0], trace["y"][-1]) for trace in data if None not in (trace["y"][0], trace["y"][-1])]
    summary = "; ".join(f"from {begin:.3g} to {end:.3g}" for begin, end in ends)
    told, shown = f"{curve.title} by step: {summary}", legend if len(legend) > 1 else ()
    return Figure(curve.name, curve.title, told, data=data, layout=layout, note=curve.note, legend=shown)


def _traces(measured: Measurements, curve: Curve, name: str, game: GameNames) -> list[dict[str, Any]]:
    """One trace for each policy. Traces of a role have the role's colour."""
    policies = sorted(measured.stage_begins)
    role = name.removesuffix("_weight")
    found = []
    for (policy, phase), steps in measured.steps.items():
        rows = steps.rows()
        values = column(rows, 1 + STEP_FIELDS.index(name))
        if phase in curve.phases and sum(value is not None for value in values) > 1:
            is_of_role = role in tuple(Role)
            colour = f"--{role}" if is_of_role else SERIES[policies.index(policy) % len(SERIES)]
            seat = [game.seat(Role(role))] if is_of_role else []
            label = " ".join([game.policy(policy)] * (len(policies) > 1) + seat) or curve.title
            found.append(line(column(rows, 0), values, label, colour))
    return found


def _stage_marks(begins: Mapping[str, int], last: float, alarmed: Container[str]) -> dict[str, Any]:
    """A line at the start of each stage, and its name if there is room before the next one; nothing if there are very
    many stages. Lines of stages in `alarmed` are highlighted."""
    if len(begins) > MOST_STAGES:
        return {}
    steps = [*begins.values(), last]
    room = (steps[-1] - steps[0]) / MOST_STAGE_NAMES
    lengths = dict(zip(begins, (after - before for before, after in pairwise(steps)), strict=True))
    place: dict[str, Any] = {"xref": "x", "yref": "paper"}
    usual, marked = {"color": "--rule-strong", "width": 1, "dash": "dot"}, {"color": "--decided", "width": 2}
    lines, names = [], []
    for stage, number in begins.items():
        drawn = {"layer": "below", "line": marked if stage in alarmed else usual}
        lines.append({"type": "line", **place, "x0": number, "x1": number, "y0": 0, "y1": 1, **drawn})
        if lengths[stage] >= room:
            text = as_label(stage) + (MARK if stage in alarmed else "")
            beside = {"x": number, "y": 1, "yanchor": "bottom", "xanchor": "left"}
            names.append(place | beside | {"text": text, "showarrow": False, "font": {"size": 11, "color": "--muted"}})
    return {"shapes": lines, "annotations": names}


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

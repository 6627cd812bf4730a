"""Curves of the learner's optimiser steps."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from spag_ray.game.rules import Role
from spag_ray.results.game_names import GameNames
from spag_ray.results.report.figure import MARK, SERIES, Figure, as_label, column, legend_of, line, numbered
from spag_ray.results.report.measurements import STEP_FIELDS, Measurements
from spag_ray.stages import Stage

MOST_STAGES = 40
MOST_STAGE_NAMES = 8


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

"""The points of curves for TensorBoard, W&B and pages, computed from lines of metrics.jsonl.

>>> from spag_ray.results.lines import CheckpointLine
>>> curves = Curves()
>>> curves.points(9.0, CheckpointLine("spag-1-v2", "spag-1", seconds=0.5, num_bytes=100))
Points(axis='seconds', x=0, time=9.0, values={'checkpoint/seconds': 0.5, 'checkpoint/num_bytes': 100.0})

A curve's name is kind/field, followed by labels if several curves have that name: the phase, the policy, the seat, the
game. The x-axis depends on the kind of line. Learner steps are drawn over the policy's optimiser steps, counted through
all stages, and so are iterations, whose version and seconds connect the axes. Values of a version of the weights are
drawn over its number. Everything else is drawn over seconds since the start of the run. x only increases: if a resumed
run repeats steps that came after the checkpoint, their first values are drawn (metrics.jsonl has both).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spag_ray.results.line_codec import MOST
from spag_ray.results.lines import OF_GAMES, ExploitabilityLine, Line, StepLine, SyncLine
from spag_ray.stages import Stage, StageKind

Axis = Literal["optimiser_step", "version", "seconds"]


@dataclass(frozen=True)
class Points:
    """The values of curves at one x. A value is text if the line has no number, for example what was restarted and
    why."""

    axis: Axis
    x: int
    time: float
    values: dict[str, float | str]


_KINDS: dict[str, tuple[Axis, tuple[str, ...]]] = {  # {kind of line: (axis, labels)}
    "step": ("optimiser_step", ("phase", "policy")),
    "sync": ("version", ("policy",)),
    "play": ("version", ("stage",)),
    "stream": ("version", ()),
    "iteration": ("optimiser_step", ()),
    "elo": ("version", ()),
    "engine": ("version", ("phase", "engine")),
    "samples": ("version", ()),
    "groups": ("version", ()),
    "evaluation": ("version", ("task", "metric", "policy")),
    "held_out": ("version", ("stage",)),
    "exploitability": ("version", ()),
    "games": ("seconds", ("phase",)),
    "buffer": ("seconds", ()),
    "checkpoint": ("seconds", ()),
    "opponent": ("seconds", ("place",)),
}
_FIELD_OF_AXIS = {"optimiser_step": "step", "version": "version"}


class Curves:
    """Takes every line of a run, in order from the first: the x of a line depends on the lines before it."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._version = 0
        self._steps = Steps()
        self._reached: dict[tuple[str, ...], int] = {}

    @property
    def num_steps(self) -> int:
        """Optimiser steps in all stages so far, of the policy with the most."""
        return self._steps.num_done

    def points(self, time: float, line: Line | None) -> Points | None:
        """`time`: when the line was written, in seconds since the epoch. Returns None for a line that draws nothing,
        for example a line of an unknown kind."""
        if self._began is None:
            self._began = time
        if line is None:
            return None
        if isinstance(line, SyncLine):
            self._version = line.report.version
        # Of a solved game not every probability.
        fields = dict(line.figures) if isinstance(line, ExploitabilityLine) else line.values()
        if line.kind not in _KINDS:
            text = ", ".join(f"{field}: {value}" for field, value in fields.items())
            return self._placed("seconds", (line.kind,), time, line, {line.kind: text})
        axis, names = _KINDS[line.kind]
        labels = [label for name in names if (label := _label(name, fields)) != "policy"]  # of the only policy
        labels += [line.game] if isinstance(line, OF_GAMES) else []
        values: dict[str, float | str] = {
            _name(line.kind, field, *labels): float(value)
            for field, value in fields.items()
            if isinstance(value, int | float) and abs(value) <= MOST and field != _FIELD_OF_AXIS.get(axis)
        }
        return self._placed(axis, (line.kind, *labels), time, line, values)

    def _placed(
        self, axis: Axis, curve: tuple[str, ...], time: float, line: Line, values: dict[str, float | str]
    ) -> Points | None:
        last = self._reached.get(curve, -1)
        if isinstance(line, StepLine):
            x = self._steps.number(line.policy, line.stage, line.report.step)
        elif axis == "seconds":
            x = max(last + 1, int(time - (self._began or 0)))
        else:  # a line that names no version is of the newest one
            x = getattr(line, _FIELD_OF_AXIS[axis], self._version)
        if x <= last or not values:
            return None
        self._reached[curve] = x
        return Points(axis, x, time, values)


class Steps:
    """Numbers a policy's optimiser steps through all stages. In metrics.jsonl the steps of each stage start at 1, but
    the rounds of a stream count on."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], int] = {}
        self._done: dict[str, int] = {}

    @property
    def num_done(self) -> int:
        return max(self._done.values(), default=0)

    def of(self, policy: str) -> int:
        """The largest number so far."""
        return self._done.get(policy, 0)

    def number(self, policy: str, stage: str, step: int) -> int:
        before = self._before.setdefault((policy, stage), self._done.get(policy, 0) + 1 - step)
        self._done[policy] = max(self._done.get(policy, 0), before + step)
        return before + step


def _label(label: str, fields: Mapping[str, Any]) -> str:
    """The value of a label. Each stage of a phase has a later version than the one before, so a phase is one curve. All
    matches are played with the last version, so each match has its own curve."""
    if fields.get("stage") and label in ("phase", "stage"):
        stage = Stage.parse(fields["stage"])
        if label == "phase" or stage.kind is not StageKind.MATCH:
            return stage.phase
    return str(fields[label])


def _name(*parts: str) -> str:
    return "/".join(re.sub(r"[^\w.-]+", "_", part) for part in parts)

"""What a line of metrics.jsonl draws: values of some curves, all at one place of an axis that a reader understands.

>>> curves = Curves()
>>> curves.points({"time": 9.0, "kind": "sync", "policy": "policy", "version": 3, "seconds": 0.5})
Points(axis='version', x=3, time=9.0, values={'sync/seconds': 0.5})

A curve's name is kind/field, and then what tells it from others of that name: the phase, one of two policies, a seat.
Learner steps are drawn over the policy's optimiser steps in all stages; what a version of the weights did over its
number; everything else over seconds since the run began. x only rises: a step that a resumed run makes again, because
it came after the checkpoint, is drawn as it was the first time (metrics.jsonl has both).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from spag_ray.stages import Stage, StageKind

Axis = Literal["optimiser_step", "version", "seconds"]


@dataclass(frozen=True)
class Points:
    """A text stands where a line says something that is no number: what was begun again, and why."""

    axis: Axis
    x: int
    time: float
    values: dict[str, float | str]


@dataclass(frozen=True)
class _Kind:
    axis: Axis
    labels: tuple[str, ...] = ()


_KINDS = {
    "step": _Kind("optimiser_step", ("phase", "policy")),
    "sync": _Kind("version", ("policy",)),
    "play": _Kind("version", ("stage",)),
    "stream": _Kind("version"),
    "samples": _Kind("version"),
    "evaluation": _Kind("version", ("task", "metric", "policy")),
    "games": _Kind("seconds", ("phase",)),
    "buffer": _Kind("seconds"),
    "checkpoint": _Kind("seconds"),
    "opponent": _Kind("seconds", ("place",)),
}
_FIELD_OF_AXIS = {"optimiser_step": "step", "version": "version", "seconds": "time"}
_ABOUT = {"time", "kind"}


class Curves:
    """Takes every line of a run from the first one on, in order: where a line stands depends on those before it."""

    def __init__(self) -> None:
        self._began: float | None = None
        self._version = 0
        self._steps = _Steps()
        self._reached: dict[tuple[str, ...], int] = {}

    def points(self, line: Mapping[str, Any]) -> Points | None:
        """None for a line that draws nothing."""
        if self._began is None:
            self._began = line["time"]
        if line["kind"] == "sync":
            self._version = line["version"]
        kind = _KINDS.get(line["kind"])
        if kind is None:
            values: dict[str, float | str] = {line["kind"]: _text(line)}
            return self._placed("seconds", (line["kind"],), line, values)
        labels = _labels(kind, line)
        values = {
            _name(line["kind"], field, *labels): float(value)
            for field, value in line.items()
            if isinstance(value, int | float) and field not in _ABOUT and field != _FIELD_OF_AXIS[kind.axis]
        }
        return self._placed(kind.axis, (line["kind"], *labels), line, values)

    def _placed(
        self, axis: Axis, curve: tuple[str, ...], line: Mapping[str, Any], values: dict[str, float | str]
    ) -> Points | None:
        last = self._reached.get(curve, -1)
        if axis == "seconds":
            assert self._began is not None
            x = max(last + 1, int(line["time"] - self._began))
        elif axis == "version":
            x = line.get("version", self._version)
        else:
            x = self._steps.number(line["policy"], line["stage"], line["step"])
        if x <= last or not values:
            return None
        self._reached[curve] = x
        return Points(axis, x, line["time"], values)


class _Steps:
    """Numbers a policy's optimiser steps through its stages; the steps of each stage count from 1, those of a stream's
    rounds go on."""

    def __init__(self) -> None:
        self._before: dict[tuple[str, str], int] = {}
        self._done: dict[str, int] = {}

    def number(self, policy: str, stage: str, step: int) -> int:
        before = self._before.setdefault((policy, stage), self._done.get(policy, 0) + 1 - step)
        self._done[policy] = max(self._done.get(policy, 0), before + step)
        return before + step


def _labels(kind: _Kind, line: Mapping[str, Any]) -> list[str]:
    labels = [_label(label, line) for label in kind.labels]
    return [label for label in labels if label != "policy"]  # the name of a policy that is the only one


def _label(label: str, line: Mapping[str, Any]) -> str:
    """Stages of a phase follow each other with the next version, so a phase is one curve; matches are all played with
    the last one."""
    if line.get("stage") and label in ("phase", "stage"):
        stage = Stage.parse(str(line["stage"]))
        if label == "phase" or stage.kind is not StageKind.MATCH:
            return stage.phase
    return str(line[label])


def _name(*parts: str) -> str:
    return "/".join(re.sub(r"[^\w.-]+", "_", part) for part in parts)


def _text(line: Mapping[str, Any]) -> str:
    return ", ".join(f"{field}: {value}" for field, value in line.items() if field not in _ABOUT)

"""Callbacks for trackers that spag_ray does not know: copy this file, and name one in the configuration.

Neither was tried with its tracker: they are not among the requirements.

    pip install trackio                       tracking: {callbacks: ["callbacks.py:Trackio"]}
    pip install mlflow-skinny                 tracking: {callbacks: ["callbacks.py:MLflow"]}

Both take each optimiser step's figures under `train/`, and each stage's shares of ended games under `play/`.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

PROJECT = os.environ.get("SPAG_RAY_PROJECT", "spag_ray")


class Tracker:
    """What both have in common. `log`: takes figures and a step. Figures that do not apply are left out."""

    def __init__(self, log: Callable[[dict[str, float], int], Any]) -> None:
        self._log = log
        self._num_steps = 0

    def on_step(self, stage: str, policy: str, report: Any) -> None:
        self._num_steps += 1
        self._log({f"train/{policy}/{name}": value for name, value in _figures(report)}, self._num_steps)

    def on_games(self, stage: str, episodes: Sequence[Any]) -> None:
        ends = Counter(str(episode.verdict.outcome) for episode in episodes)
        shares = {f"play/{name.replace(' ', '_')}": count / len(episodes) for name, count in ends.items()}
        self._log(shares, self._num_steps)


class Trackio(Tracker):
    """Writes to Trackio's local database; `trackio show` opens its page."""

    def __init__(self) -> None:
        import trackio

        run = trackio.init(project=PROJECT)
        super().__init__(lambda figures, step: run.log(figures, step=step))


class MLflow(Tracker):
    """Writes to MLFLOW_TRACKING_URI, or to ./mlruns."""

    def __init__(self) -> None:
        import mlflow

        mlflow.set_experiment(PROJECT)
        run_id = mlflow.start_run().info.run_id  # the active run is one of this thread alone; hooks have their own
        super().__init__(lambda figures, step: mlflow.log_metrics(figures, step=step, run_id=run_id))


def _figures(report: Any) -> Iterator[tuple[str, float]]:
    """The report's finite numbers."""
    for field in fields(report):
        value = getattr(report, field.name)
        if isinstance(value, int | float) and math.isfinite(value):
            yield field.name, float(value)

"""Callbacks for trackers that spag_ray does not know: copy this file, and name one in the configuration.

    pip install trackio                       tracking: {callbacks: ["callbacks.py:Trackio"]}
    pip install mlflow-skinny                 tracking: {callbacks: ["callbacks.py:MLflow"]}

Both take each optimiser step's figures under `train/`, and each stage's shares of ended games under `play/`.
"""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any

PROJECT = os.environ.get("SPAG_RAY_PROJECT", "spag_ray")


class Tracker:
    """What both have in common. Figures that do not apply are left out."""

    def __init__(self) -> None:
        self.num_steps = 0

    def log(self, figures: dict[str, float], step: int) -> None:
        raise NotImplementedError

    def on_step(self, stage: str, policy: str, report: Any) -> None:
        self.num_steps += 1
        self.log({f"train/{policy}/{name}": value for name, value in _figures(report)}, self.num_steps)

    def on_games(self, stage: str, episodes: Sequence[Any]) -> None:
        ends = Counter(str(episode.verdict.outcome) for episode in episodes)
        shares = {f"play/{name.replace(' ', '_')}": count / len(episodes) for name, count in ends.items()}
        self.log(shares, self.num_steps)


class Trackio(Tracker):
    """Writes to Trackio's local database; `trackio show` opens its page."""

    def __init__(self) -> None:
        import trackio

        super().__init__()
        self._run = trackio.init(project=PROJECT)

    def log(self, figures: dict[str, float], step: int) -> None:
        self._run.log(figures, step=step)


class MLflow(Tracker):
    """Writes to MLFLOW_TRACKING_URI, or to ./mlruns."""

    def __init__(self) -> None:
        import mlflow

        super().__init__()
        mlflow.set_experiment(PROJECT)
        self._mlflow, self._run = mlflow, mlflow.start_run()

    def log(self, figures: dict[str, float], step: int) -> None:
        client = self._mlflow.tracking.MlflowClient()
        for name, value in figures.items():
            client.log_metric(self._run.info.run_id, name, value, step=step)


def _figures(report: Any) -> Iterator[tuple[str, float]]:
    """The report's finite numbers."""
    for field in fields(report):
        value = getattr(report, field.name)
        if isinstance(value, int | float) and math.isfinite(value):
            yield field.name, float(value)

"""The engines of a run: who may be taken out, and what becomes of those that die."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.planning.reservation import Reservation
from cluster.rollout.engines import Engines
from cluster.run.run import Run
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.recorder import Recorder
from spag_ray.config.run import RunConfig
from spag_ray.errors import InputError


def engines_of(config: RunConfig, folder: Path) -> Engines:
    """Of a run without games."""
    metrics = Recorder(folder)
    arenas: Any = SimpleNamespace(join=lambda *_: None, drop=lambda *_: None)
    return Engines(config, folder, arenas, metrics, RestartBudget(config.supervision, metrics), Reservation())


def test_an_engine_that_is_not_there_cannot_be_taken_out(tmp_path: Path) -> None:
    engines = engines_of(RunConfig(), tmp_path)
    with pytest.raises(InputError, match="no engine is called 'engine-policy-7'"):
        engines.remove("engine-policy-7")
    engines.close()


def test_no_engine_is_added_for_a_policy_that_does_not_learn() -> None:
    run: Any = SimpleNamespace(_policies=[SimpleNamespace(name="attacker"), SimpleNamespace(name="defender")])
    with pytest.raises(InputError, match="no policy 'policy' learns; there are attacker, defender"):
        Run.add_engine(run)

"""The engines of a run: who may be taken out, and what becomes of those that die."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cluster.planning.reservation import Reservation
from cluster.rollout import engines as module
from cluster.rollout.engines import Engines
from cluster.run.run import Run
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.recorder import Recorder
from spag_ray.config.run import RunConfig
from spag_ray.errors import EngineGoneError, InputError


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


def test_an_engine_whose_process_ends_while_it_starts_is_a_line_with_its_logs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(refs: Any) -> Any:
        raise ray.exceptions.RayActorError

    monkeypatch.setattr(module, "get", get)
    monkeypatch.setattr(ray, "wait", lambda refs, num_returns, timeout: (refs, []))
    engines = engines_of(RunConfig(), tmp_path)
    starts: Any = ["the start of an engine"]
    with pytest.raises(EngineGoneError, match=r"ended while it started \(The actor.*/logs$") as caught:
        engines._wait_until_up([], starts)
    assert "\n" not in str(caught.value)
    engines.close()

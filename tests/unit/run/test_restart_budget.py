"""How dead and stuck actors are counted, how many restarts are allowed, and what is recorded."""

import time
from pathlib import Path

import pytest
import ray

from cluster.supervision.restart_budget import Incident, RestartBudget, TooManyRestartsError
from cluster.tracking.recorder import Recorder
from spag_ray.config.parts import SupervisionConfig
from spag_ray.errors import LearnersLostError
from tests.support.runs import records_of


def test_restarts_are_bounded_counted_and_written_down(tmp_path: Path) -> None:
    metrics = Recorder(tmp_path)
    restarts = RestartBudget(SupervisionConfig(max_restarts=2, within_s=60), metrics)
    restarts.count("engine-policy-0", "engine-policy-0 has not answered a heartbeat for 120 s")
    restarts.count("learners", ray.exceptions.OutOfMemoryError("the node ran out of memory"))
    late = LearnersLostError("a learner call took longer than learner.timeout_s (20 s)")
    late.__cause__ = ray.exceptions.GetTimeoutError()
    with pytest.raises(TooManyRestartsError, match=r"3 restarts within 60 s.*out of memory; learners: stuck"):
        restarts.count("learners", late)
    with pytest.raises(TooManyRestartsError):
        restarts.count("arena-0", RuntimeError("it is gone"))
    assert [line["cause"] for line in records_of(tmp_path, "restart")] == ["stuck", "out of memory", "stuck", "crash"]


def test_what_one_incident_has_ended_counts_once_and_each_is_written_down(tmp_path: Path) -> None:
    restarts = RestartBudget(SupervisionConfig(max_restarts=1, within_s=60), Recorder(tmp_path))
    incident = Incident()
    for number in range(8):
        restarts.count(f"engine-policy-{number}", RuntimeError("its node is gone"), incident)
    with pytest.raises(TooManyRestartsError, match="2 restarts within"):
        restarts.count("engine-policy-0.2", RuntimeError("it is gone"), Incident())
    assert len(records_of(tmp_path, "restart")) == 9


def test_an_old_restart_does_not_count(tmp_path: Path) -> None:
    restarts = RestartBudget(SupervisionConfig(max_restarts=1, within_s=0.05), Recorder(tmp_path))
    for _ in range(3):
        restarts.count("engine", "stuck")
        time.sleep(0.06)

"""How dead and stuck actors are counted, how many restarts are allowed, and what is recorded."""

import time
from pathlib import Path
from typing import Any, cast

import pytest
import ray

from cluster.learning import direct_channel
from cluster.supervision import restart_budget
from cluster.supervision.restart_budget import Incident, RestartBudget, TooManyRestartsError
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.config.parts import SupervisionConfig
from spag_ray.errors import EngineError, EngineGoneError, LearnersLostError
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
    for reason in ("it is gone", "engine-policy-1: 2 worker(s) were killed due to the node running low on memory."):
        with pytest.raises(TooManyRestartsError):
            restarts.count("arena-0", RuntimeError(reason))
    causes = ["stuck", "out of memory", "stuck", "crash", "out of memory"]
    assert [line["cause"] for line in records_of(tmp_path, "restart")] == causes


def test_what_one_incident_has_ended_counts_once_and_each_is_written_down(tmp_path: Path) -> None:
    restarts = RestartBudget(SupervisionConfig(max_restarts=1, within_s=60), Recorder(tmp_path))
    incident = Incident()
    for number in range(8):
        restarts.count(f"engine-policy-{number}", RuntimeError("its node is gone"), incident)
    with pytest.raises(TooManyRestartsError, match="2 restarts within"):
        restarts.count("engine-policy-0.2", RuntimeError("it is gone"), Incident())
    assert len(records_of(tmp_path, "restart")) == 9


def test_the_kernels_count_of_kills_explains_only_what_ended_here_shortly_after_it_rose(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A kill of ten days ago, of another user's process, was once the cause of the next restart on any node."""
    kills = [100]
    monkeypatch.setattr(restart_budget, "oom_kills", lambda: kills[0])
    restarts = RestartBudget(SupervisionConfig(), Recorder(tmp_path))
    here, elsewhere = (
        RuntimeError(f"The actor died unexpectedly before finishing this task.\n\tpid: 7\n\tip: {ip}\nA worker died.")
        for ip in (ray.util.get_node_ip_address(), "10.255.0.9")
    )
    started = EngineGoneError("an engine's process ended while it started")
    started.__cause__ = here
    restarts.count("before any kill", here)
    kills[0] += 1
    restarts.poll()
    for what in (here, elsewhere, started, "engine-policy-0 has not answered a heartbeat for 120 s"):
        restarts.count("after a kill", what)
    monkeypatch.setattr(restart_budget, "KILL_EXPLAINS_S", -1.0)
    restarts.count("long after the kill", here)
    kills[0] += 1
    monkeypatch.setattr(restart_budget, "KILL_EXPLAINS_S", 60.0)
    restarts.count("before the next poll", here)
    assert [line["cause"] for line in records_of(tmp_path, "restart")] == [
        "crash",
        *("out of memory", "crash", "out of memory", "stuck"),
        "crash",
        "out of memory",
    ]


def test_an_engine_that_the_kernel_killed_amid_its_weights_is_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is said of an engine that was lost in a sync is a line; it has the address that tells its machine."""
    ip = ray.util.get_node_ip_address()
    died = ray.exceptions.RayActorError()
    monkeypatch.setattr(ray.exceptions.RayActorError, "__str__", lambda _: f"The actor died.\n\tpid: 7\n\tip: {ip}\n")
    monkeypatch.setattr(direct_channel, "_answer", lambda *_: (_ for _ in ()).throw(died))
    monkeypatch.setattr(direct_channel.ray, "kill", lambda _: None)
    monkeypatch.setattr(direct_channel.ray, "wait", lambda refs, **_: (refs, []))
    engine, ref = Engine(cast(Any, None), "engine-policy-0", "policy"), cast(Any, object())
    (reason,) = direct_channel.gather([engine], [ref], 1.0).lost.values()
    assert reason == f"engine-policy-0: The actor died. (ip: {ip})"
    kills = [100]
    monkeypatch.setattr(restart_budget, "oom_kills", lambda: kills[0])
    restarts = RestartBudget(SupervisionConfig(), Recorder(tmp_path))
    kills[0] += 1
    restarts.count("engine-policy-0", EngineError(reason))
    assert [line["cause"] for line in records_of(tmp_path, "restart")] == ["out of memory"]


def test_an_old_restart_does_not_count(tmp_path: Path) -> None:
    restarts = RestartBudget(SupervisionConfig(max_restarts=1, within_s=0.05), Recorder(tmp_path))
    for _ in range(3):
        restarts.count("engine", "stuck")
        time.sleep(0.06)

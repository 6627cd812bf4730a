"""The engines of a run: who may be taken out, and what becomes of those that die."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cluster.planning.reservation import Reservation
from cluster.rollout import engines as module
from cluster.rollout.engines import Engines, Placed
from cluster.rollout.publisher import Publisher
from cluster.run.run import Run
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
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


def test_an_engine_that_died_while_the_learner_worked_is_replaced_after_the_publish(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its replacement starts in a thread that needs the lock of the publish: once the run hung for ever there."""
    config = RunConfig(placement="colocated")
    engines = engines_of(config, tmp_path)
    call = SimpleNamespace(remote=lambda *_: None)
    handle: Any = SimpleNamespace(sleep=call, wake=call)
    monkeypatch.setattr("cluster.rollout.engines.ray.kill", lambda handle: None)
    monkeypatch.setattr(engines, "_wait_for", lambda *_: None)
    monkeypatch.setattr(engines.watch, "watch", lambda placed: None)
    monkeypatch.setattr(engines, "_start", lambda model, pool, names, *_: [Engine(handle, names[0], pool)])
    calls: list[str] = []

    class Policy:
        """A learner that publishes to the engines that it has."""

        name, version, next_version, waiting = "policy", 1, 2, ()

        def __getattr__(self, name: str) -> Any:
            def call(*_: Any, **__: Any) -> Any:
                calls.append(name)
                return {} if name in ("publish", "verify_weights") else True

            return call

        engines: tuple[Engine, ...] = ()

    policy: Any = Policy()
    lease: Any = SimpleNamespace(folder=tmp_path, check=lambda now: None)
    arenas: Any = None
    publisher = Publisher(config, lease, [policy], engines, arenas)
    engines._place(Placed(Engine(handle, "engine-policy-0", "policy"), "model", "policy", policy))
    publisher.wake_learners()
    engines._replace(engines.placed[0], "it was killed")
    assert engines.placed == []
    publishing = threading.Thread(target=publisher.publish, daemon=True)
    publishing.start()
    publishing.join(10)
    assert not publishing.is_alive(), "the publish does not wait for the replacement"
    assert [placed.engine.name for placed in engines.placed] == ["engine-policy-0.2"]
    assert calls.index("verify_weights") < calls.index("catch_up"), "it takes the version that was published"
    engines._placed.clear()
    engines.close()


def test_no_engine_is_added_for_a_policy_that_does_not_learn() -> None:
    policies = [SimpleNamespace(name="attacker"), SimpleNamespace(name="defender")]
    add_engine: Any = Run.add_engine
    run: Any = SimpleNamespace(_parts=SimpleNamespace(policies=policies))
    with pytest.raises(InputError, match="no policy 'policy' learns; there are attacker, defender"):
        add_engine(run)


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

"""Threads of an engine or a learner that wait for each other sleep soon."""

import os

import pytest
import ray

from actors import engine_process
from cluster.runtime.ray_session import set_environment
from spag_ray.config.engine import EngineConfig
from spag_ray.host.waiting_threads import SPINS, set_before_libraries


@pytest.mark.parametrize(
    ("outside", "spins"), [({}, SPINS), ({"GOMP_SPINCOUNT": "9"}, "9"), ({"OMP_WAIT_POLICY": "passive"}, None)]
)
def test_environment_comes_first(monkeypatch: pytest.MonkeyPatch, outside: dict[str, str], spins: str | None) -> None:
    monkeypatch.setattr(os, "environ", outside.copy())
    set_before_libraries({})
    assert os.environ.get("GOMP_SPINCOUNT") == spins


@pytest.mark.parametrize(("asked", "spins"), [({}, SPINS), ({"GOMP_SPINCOUNT": "7"}, "7")])
def test_engines_and_learners_take_it_and_their_own_env_comes_first(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, str], spins: str
) -> None:
    monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "127.0.0.1")
    monkeypatch.setattr(os, "environ", {})
    set_environment(asked)  # of Ray's actors, both kinds
    assert os.environ["GOMP_SPINCOUNT"] == spins

    class StartedError(Exception):
        pass

    def start(*_: object) -> None:
        raise StartedError(os.environ["GOMP_SPINCOUNT"])

    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(engine_process, "start_engine", start)
    with pytest.raises(StartedError, match=spins):  # of an engine without Ray
        engine_process._open("model", EngineConfig(env=asked), "name")

"""Errors while Ray starts."""

from __future__ import annotations

import inspect

import pytest
import ray

from cluster.runtime.ray_session import STARTUP_TIMEOUT, ClusterError, ray_session
from spag_ray.config.parts import ClusterConfig


def test_a_local_ray_that_does_not_start_in_time_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_: object) -> None:
        raise Exception(f"The current node {STARTUP_TIMEOUT}. This could happen because of the GCS.")

    monkeypatch.setattr(ray, "init", start)
    with pytest.raises(ClusterError, match="a local Ray did not start within 30 s"), ray_session(ClusterConfig()):
        pass


def test_ray_still_words_it_so() -> None:
    assert STARTUP_TIMEOUT in inspect.getsource(ray._private.node)


def test_other_errors_keep_their_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(**_: object) -> None:
        raise Exception("something else")

    monkeypatch.setattr(ray, "init", start)
    with pytest.raises(Exception, match="something else"), ray_session(ClusterConfig()):
        pass

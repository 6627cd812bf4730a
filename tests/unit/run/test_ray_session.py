"""Errors while Ray starts, and what an error says of the actor that was called."""

import inspect

import pytest
import ray

from cluster.runtime.ray_session import (
    STARTUP_TIMEOUT,
    ClusterError,
    Retry,
    first_line,
    is_gone,
    is_unavailable,
    ray_session,
)
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


def failed(cause: Exception) -> Exception:
    """What Ray raises of a method that raised `cause`."""
    return ray.exceptions.RayTaskError("method", "traceback", cause).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "gone", "unavailable"),
    [
        (ray.exceptions.ActorDiedError(), True, False),
        (ray.exceptions.GetTimeoutError(), True, False),
        (ray.exceptions.OutOfMemoryError("the node ran low on memory"), True, False),
        (ray.exceptions.ActorUnavailableError("connection reset", None), False, True),
        (failed(ray.exceptions.ActorDiedError()), False, False),
        (failed(ValueError()), False, False),
    ],
    ids=lambda value: type(value).__name__,
)
def test_only_an_actor_that_died_or_is_silent_is_gone(error: Exception, gone: bool, unavailable: bool) -> None:
    assert (is_gone(error), is_unavailable(error)) == (gone, unavailable)


def test_the_first_line_of_a_failed_call_is_that_of_what_the_method_raised() -> None:
    inner = failed(ValueError("no room\nmore"))
    assert first_line(failed(inner)) == "no room"
    assert first_line(failed(MemoryError())) == "MemoryError"


def test_pauses_grow_up_to_a_limit_and_end() -> None:
    retry = Retry(60.0)
    pauses = [retry.pause_s() for _ in range(10)]
    assert pauses == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5.0, 5.0, 5.0, 5.0]
    assert Retry(0.0).pause_s() is None

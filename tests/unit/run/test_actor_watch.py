"""What the watch makes of an actor that is dead; that it finds hangs is in the integration tests."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cluster.supervision import actor_watch
from cluster.supervision.actor_watch import ActorWatch


class Handle:
    """Its calls have ended, with this error."""

    def __init__(self, error: ray.exceptions.RayError) -> None:
        self.error = error
        self.num_calls = 0

    def __getattr__(self, method: str) -> Any:
        return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=self._call))

    def _call(self) -> "Handle":
        self.num_calls += 1
        return self


@pytest.mark.parametrize("is_restarted", [False, True], ids=["arena", "buffer"])
@pytest.mark.parametrize(
    "error",
    [ray.exceptions.ActorDiedError(), ray.exceptions.OutOfMemoryError("the node ran low on memory")],
    ids=lambda error: type(error).__name__,
)
def test_an_actor_that_died_or_was_ended_for_memory_does_not_end_the_watch(
    error: ray.exceptions.RayError, is_restarted: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def get(call: Handle) -> None:
        raise call.error

    rays = SimpleNamespace(wait=lambda calls, timeout: (calls, []), get=get, exceptions=ray.exceptions)
    monkeypatch.setattr(actor_watch, "ray", rays)
    watch, handle = ActorWatch(5.0), Handle(error)
    watch.watch("it", handle, is_restarted)
    for _ in range(3):
        watch._look()
    assert watch.reason("it") is None, "it was not killed by this watch"
    assert (handle.num_calls > 2) == is_restarted, "only one that Ray restarts is asked again"

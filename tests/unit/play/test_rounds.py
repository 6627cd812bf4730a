"""An arena that dies in a round."""

from types import SimpleNamespace
from typing import Any

import pytest
import ray

from actors.arena import GameTask
from cluster.schedules import rounds


@pytest.mark.parametrize(
    "error",
    [ray.exceptions.ActorDiedError(), ray.exceptions.OutOfMemoryError("the node ran low on memory")],
    ids=lambda error: type(error).__name__,
)
def test_a_new_arena_plays_the_games_that_are_not_in_the_log(
    error: ray.exceptions.RayError, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[list[int]] = []
    replaced: list[BaseException] = []

    def arena(ends_with: Exception | None) -> Any:
        def play(tasks: list[GameTask], seats: Any, games_in_flight: int) -> Any:
            asked.append([task.number for task in tasks])
            return (ends_with,)

        return SimpleNamespace(play=SimpleNamespace(remote=play))

    def replace(index: int, name: str, error: BaseException) -> Any:
        replaced.append(error)
        return arena(None)

    def get(call: tuple[Exception | None]) -> None:
        if call[0] is not None:
            raise call[0]

    rays = SimpleNamespace(wait=lambda calls, timeout: (calls[:1], calls[1:]), exceptions=ray.exceptions)
    monkeypatch.setattr(rounds, "ray", rays)
    monkeypatch.setattr(rounds, "get", get)
    asks = SimpleNamespace(remote=lambda stage: stage)
    ground: Any = SimpleNamespace(
        config=SimpleNamespace(self_play=SimpleNamespace(games_in_flight=4)),
        arenas=SimpleNamespace(handles=[arena(error)], name=lambda index: "arena-0", replace=replace),
        buffer=SimpleNamespace(handle=SimpleNamespace(count=asks, played=asks), get=lambda _: {0: "river"}),
        status=SimpleNamespace(show_games=lambda *_: None),
        poll_health=lambda: None,
    )
    rounds._play_all(ground, "spag-1", 3, [GameTask(number, "river", "spag-1") for number in range(3)], {})
    assert asked == [[0, 1, 2], [1, 2]]
    assert replaced == [error]

"""Only actors that run no model do without torch; a real one is in test_end_to_end.py."""

import importlib.util
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import ray

from cluster.runtime.without_torch import without_torch
from spag_ray.games.kuhn import KuhnPoker


class OwnGame:
    """A user's."""


class InActor:
    def get_actor_id(self) -> str:
        return "01"


def is_hidden(games: Sequence[Any]) -> bool:
    with without_torch(games):
        return importlib.util.find_spec("torch") is None


def test_torch_is_hidden_only_in_actors_without_a_game_of_the_users_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "modules", {name: each for name, each in sys.modules.items() if name != "torch"})
    assert not is_hidden([None]), "a program that is no actor, such as this one"
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(ray, "get_runtime_context", InActor)
    assert is_hidden([None, KuhnPoker()])
    assert not is_hidden([None, OwnGame()])

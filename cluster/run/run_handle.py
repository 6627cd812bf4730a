"""The Protocol of a Run's actor handle, for commands and sessions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from cluster.handles import ActorHandle, remote_method
from cluster.schedules.tournament import Entrant
from cluster.types import Progress
from spag_ray.results.evaluations import Evaluation
from spag_ray.results.matches import Match
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.stage_spec import Method

# The Run's threads beside those that train: for what answers at once, and for what a session may have to wait for.
CONTROL, SESSIONS = "control", "sessions"
CONCURRENCY_GROUPS = {CONTROL: 4, SESSIONS: 8}


class RunHandle(ActorHandle, Protocol):
    """The handle of a Run (run.py)."""

    @remote_method
    def train(self) -> list[Match]: ...

    @remote_method
    def train_alone(self) -> None: ...

    @remote_method
    def play_only(self, attacker: str, defender: str, words: Sequence[str]) -> list[dict[str, Any]]: ...

    @remote_method
    def match_only(self, entrants: Sequence[Entrant], against: str | None, played: Sequence[Match]) -> list[Match]: ...

    @remote_method
    def learn_only(self, method: Method, games: Sequence[GameSample], sft: Sequence[Sample], out: str) -> None: ...

    @remote_method
    def evaluate_only(self, model: str, stage: str) -> list[Evaluation]: ...

    @remote_method
    def status(self) -> Progress: ...

    @remote_method
    def described(self) -> dict[str, Any]: ...

    @remote_method
    def episodes(self, count: int, outcome: str | None, stage: str | None) -> list[dict[str, Any]]: ...

    @remote_method
    def metrics(self, kind: str | None, count: int) -> list[dict[str, Any]]: ...

    @remote_method
    def play_turn(self, word: str, texts: list[str], human: str, game: str | None = None) -> dict[str, Any]: ...

    @remote_method
    def pause(self) -> None: ...

    @remote_method
    def resume(self) -> None: ...

    @remote_method
    def save_soon(self) -> None: ...

    @remote_method
    def stop_soon(self, seconds: float) -> None: ...

    @remote_method
    def add_engine(self, policy_name: str = "policy") -> str: ...

    @remote_method
    def remove_engine(self, name: str) -> None: ...

"""The scripted seats of a game other than Taboo: the game itself says what they reply (`scripted` of protocol.py)."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence

from actors.policy import GameView
from actors.scripted_policy import ScriptedPolicy
from spag_ray.errors import EngineError
from spag_ray.game.protocol import Game, Scripted, seat_of


class ScriptedSeats(ScriptedPolicy):
    """`encode(text) -> token ids` as reply_ids of a renderer. The same game and seed give the same reply. Raises
    EngineError for a game without scripted seats."""

    def __init__(
        self, game: Game, encode: Callable[[str], Sequence[int]], name: str = "scripted", seed: int = 0
    ) -> None:
        super().__init__({}, encode, name, seed=seed)
        if not isinstance(game, Scripted):
            raise EngineError(f"{type(game).__name__} has no scripted seats")
        self._game = game

    def reply(self, view: GameView, request_id: str = "") -> str:
        assert view.scenario is not None, "an arena tells scripted seats the scenario"
        rng = random.Random(f"{self._seed}/{request_id}/{len(view.history)}")
        history = [text for _, text in view.history]
        return self._game.scripted(seat_of(view.role), history, view.scenario, rng)

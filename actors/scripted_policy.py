"""The scripted seats of a game: the game itself says what they reply.

expert = ScriptedPolicy(KuhnPoker(), encode=renderer.reply_ids)
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence

from actors.policy import Completion, GameView, Pairs, Request, Score
from spag_ray.errors import EngineError
from spag_ray.game.game_form import asking
from spag_ray.game.protocol import Game, HasStrategies, Scripted, seat_of


class ScriptedPolicy:
    """`encode(text) -> token ids`, as reply_ids of a renderer, makes replies token-exact for a learner's tokenizer. The
    same game and seed give the same reply. Raises EngineError for a game without scripted seats."""

    def __init__(
        self, game: Game, encode: Callable[[str], Sequence[int]], name: str = "scripted", seed: int = 0
    ) -> None:
        if not isinstance(game, Scripted):
            raise EngineError(f"{type(game).__name__} has no scripted seats")
        self.name = name
        self._game = game
        self._encode = encode
        self._seed = seed

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        if isinstance(self._game, HasStrategies):  # which may compute for seconds
            return [await asyncio.to_thread(self._answer, request) for request in requests]
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        if request.view is None:
            raise EngineError("a scripted policy plays from a GameView; the request carries none")
        tokens = tuple(self._encode(self.reply(request.view, request.request_id)))
        return Completion.unsampled(request.request_id, tokens)

    def reply(self, view: GameView, request_id: str = "") -> str:
        """Its reply, a function of the game, the request's id and the seed."""
        rng = random.Random(f"{self._seed}/{request_id}/{len(view.history)}")
        with asking(self._game, "scripted", view.history, view.scenario):
            return self._game.scripted(seat_of(view.role), list(view.history), view.scenario, rng)

    async def score(self, sequences: Pairs, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
        raise EngineError("a scripted policy has no probabilities to score with")

"""Several games in one run: `games`, in place of `game`.

    games:
      - {name: taboo, share: 0.5, max_turns: 4}
      - {name: kuhn, share: 0.5, objective: {baseline: scenario, role_weights: none}}

`RunConfig.each_game` is the way from here to the rest of the program: one configuration for each game.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

from pydantic import Field

from spag_ray.config.parts import GameConfig, Part


class GameObjective(Part):
    """Keys of `objective` that a game has for itself: how its results become rewards. Empty keys are the run's."""

    decay: float | None = Field(None, gt=0, le=1, description="as in objective")
    learn_from: Literal["winners", "both"] | None = Field(None, description="as in objective")
    loser_turns: Literal["all", "deciding"] | None = Field(None, description="as in objective")
    baseline: Literal["none", "moving", "mean", "scenario"] | None = Field(None, description="as in objective")
    role_weights: Literal["balanced", "none"] | None = Field(None, description="as in objective")
    role_weight_cap: float | None = Field(None, gt=0, description="as in objective")


class SharedGame(GameConfig):
    """One of the games of a run."""

    share: float = Field(gt=0, le=1, description="of the games that are played; the shares add up to 1")
    objective: GameObjective = Field(GameObjective(), description="what differs from the run's `objective`")

    @property
    def alone(self) -> GameConfig:
        """The game as a run of this game alone has it."""
        return GameConfig.model_validate(self.model_dump(include=set(GameConfig.model_fields)))


def check_shares(games: Sequence[SharedGame]) -> None:
    """Raise ValueError for games that are no list of different games whose shares add up to 1."""
    names = [game.full_name for game in games]
    if len(games) == 1:
        raise ValueError(f"games: {names[0]} is alone; write it as game: {{name: {games[0].name}}}")
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"games: {twice} is there twice; give each game once, with its whole share")
    total = math.fsum(game.share for game in games)
    if abs(total - 1) > 1e-6:
        raise ValueError(f"games: the shares add up to {total:g}; they have to add up to 1")

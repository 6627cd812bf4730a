"""The rules that a run's arenas play by."""

from __future__ import annotations

import sys

import ray

from actors.arena import Rules
from spag_ray.config.run import RunConfig
from spag_ray.games.of_config import game_of
from spag_ray.games.registry import is_from_file


def rules_of(config: RunConfig) -> Rules:
    """The rules, with the game if it is not Taboo. A class from a user's file is sent to other processes with its code,
    because its file need not be there."""
    game = game_of(config)
    if game is None:
        return Rules(config.game.max_turns, config.game.rules)
    module = sys.modules[type(game).__module__]
    if is_from_file(module.__name__):
        ray.cloudpickle.register_pickle_by_value(module)
    return Rules(game.max_turns, "", game, config.game.name, config.prompts)

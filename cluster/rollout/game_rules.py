"""The rules that a run's arenas play by."""

from __future__ import annotations

import ray

from actors.arena import Rules
from spag_ray.config.run import RunConfig
from spag_ray.game.protocol import guesser_of
from spag_ray.games.of_config import game_of, style_of
from spag_ray.games.registry import module_to_send


def every_rules(config: RunConfig) -> list[Rules]:
    """`rules_of` each game of the run."""
    return [rules_of(each) for each in config.each_game]


def rules_of(config: RunConfig) -> Rules:
    """The rules of a configuration of one game. A class from a user's file or package is sent to other processes with
    its code and that of all imported modules of the package, because its files need not be there."""
    game = game_of(config)
    if (module := module_to_send(game)) is not None:
        ray.cloudpickle.register_pickle_by_value(module)
    is_heard = config.objective.information_gain > 0 and guesser_of(game) is not None
    heard = config.objective.gain_event if is_heard else None
    return Rules(game, config.game.full_name, style_of(config, game), config.chat_template_kwargs, heard)

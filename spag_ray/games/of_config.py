"""The game of a configuration, and the renderer of its prompts: Taboo's prompt files, or any game's messages."""

from __future__ import annotations

import random

from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from spag_ray.game.game_renderer import game_renderer
from spag_ray.game.prompt_file import load_template
from spag_ray.game.prompts import Renderer, make_renderer
from spag_ray.game.protocol import Game, Scripted
from spag_ray.games.registry import load_game
from spag_ray.tokens import Tokenizer


def game_of(config: RunConfig) -> Game | None:
    """The game that is played; None for Adversarial Taboo, whose parts have homes of their own (spag_ray/game/). Raises
    ConfigError."""
    if config.game.is_taboo:
        return None
    game = load_game(config.game.name)
    if config.imitation.enabled and not isinstance(game, Scripted):
        raise ConfigError(
            f"game.name: {config.game.name}: it has no scripted seats to imitate; set imitation.enabled to "
            "false, or give the game a method `scripted`"
        )
    return game


def renderer_of(config: RunConfig, tokenizer: Tokenizer) -> Renderer:
    """Renders the prompts of this configuration."""
    game = game_of(config)
    if game is None:
        return make_renderer(load_template(config.prompts), tokenizer, config.game.max_turns)
    return game_renderer(game, tokenizer, config.prompts)


def scenarios_of(config: RunConfig, game: Game) -> tuple[list[str], list[str]]:
    """(scenarios to train on, scenarios held out), a function of the seed: disjoint, or both all of them if the game is
    exhaustive. Raises ConfigError for scenarios that are no list of different texts, and for too few of them."""
    name = f"game.name: {config.game.name}"
    every = list(game.scenarios())
    if not every or not all(isinstance(each, str) and each for each in every):
        raise ConfigError(f"{name}: its scenarios have to be texts, at least one")
    if len(set(every)) < len(every):
        twice = next(each for place, each in enumerate(every) if each in every[:place])
        raise ConfigError(f"{name}: the scenario {twice!r} is there twice; give each once")
    shuffled = list(every)
    random.Random(config.seed).shuffle(shuffled)
    if game.is_exhaustive:
        return shuffled, shuffled
    num_held_out = config.words.num_held_out
    if len(every) <= num_held_out:
        raise ConfigError(
            f"words.num_held_out is {num_held_out}, but {config.game.name} has {len(every)} scenarios; hold fewer out"
        )
    return shuffled[num_held_out:][: config.words.num_train], shuffled[:num_held_out]

"""The game of a configuration, and the renderer of its prompts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeAlias

from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, meant
from spag_ray.game.game_form import listed, scenarios_fault, split_scenarios
from spag_ray.game.protocol import Game, Scripted, strategies_of
from spag_ray.game.renderer import Renderer
from spag_ray.game.styles import game_renderer
from spag_ray.games.registry import load_game
from spag_ray.tokens import Tokenizer

Scenarios: TypeAlias = Mapping[str, Sequence[str]]  # {full name of a game: its scenarios}


def game_of(config: RunConfig) -> Game:
    """The game of a configuration of one game (RunConfig.each_game). Raises ConfigError."""
    name, fault = config.game.full_name, None
    game = load_game(name, config)
    if config.imitation.enabled:
        fault = "to imitate; set imitation.enabled to false"
    elif config.league.scripts:
        fault = "to play against; take `scripted` out of league.fixed"
    if fault and not isinstance(game, Scripted):
        raise ConfigError(f"game.name: {name}: it has no scripted seats {fault}, or give the game a method `scripted`")
    check_strategies(game, name, config.league.scripts)
    return game


def check_strategies(game: Game, name: str, scripts: Iterable[str]) -> None:
    """Refuses a strategy of a scripted player, `scripted:NAME`, that the game of this name does not have."""
    known = strategies_of(game)
    for script in scripts:
        if script and script not in known:
            has = f"it has {', '.join(known)}" if known else "it has none"
            raise ConfigError(f"scripted:{script}: {name} has no strategy of this name; {has}{meant(script, known)}")


def renderer_of(config: RunConfig, tokenizer: Tokenizer, game: Game | None = None) -> Renderer:
    """Renders the prompts of this configuration. `game`: its game, if it is there already."""
    game = game or game_of(config)
    return game_renderer(game, tokenizer, style_of(config, game))


def style_of(config: RunConfig, game: Game) -> str:
    """How the game's messages become a prompt: as the game says, or as `prompts` says."""
    return getattr(game, "prompt_style", None) or config.prompts


def scenarios_of(config: RunConfig, game: Game) -> tuple[list[str], list[str]]:
    """(scenarios to train on, scenarios held out), a function of the seed: disjoint, or of an exhaustive game both of
    all of them. Raises ConfigError for scenarios that are no list of different texts, and for too few of them."""
    every = listed(game)
    if fault := scenarios_fault(every):
        raise ConfigError(f"game.name: {config.game.full_name}: {fault}")
    if game.is_exhaustive:
        shuffled, _ = split_scenarios(every, config.seed, 0)
        return shuffled[: config.words.num_train], shuffled
    num_held_out = config.words.num_held_out
    if len(every) <= num_held_out:
        raise ConfigError(
            f"words.num_held_out is {num_held_out}, but {config.game.full_name} has {len(every)} scenarios; hold fewer "
            "out"
        )
    trained, held_out = split_scenarios(every, config.seed, num_held_out)
    return trained[: config.words.num_train], held_out

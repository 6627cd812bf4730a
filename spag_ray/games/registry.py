"""Games by name: `taboo`, `kuhn`, an environment of TextArena or OpenSpiel, an entry point of the group
`spag_ray.games`, or a class of the user's own; and the game of a configuration, with its renderer and scenarios.

load_game("kuhn")
load_game("textarena:TicTacToe-v0")    an environment of TextArena (textarena_game.py)
load_game("openspiel:leduc_poker")     a small game of OpenSpiel (openspiel_game.py)
load_game("my_module:MyGame")          a module that can be imported, or my_module.py in the current folder
load_game("games/mine.py:MyGame")      a file, alone or in a package
"""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any, TypeAlias, cast

from spag_ray.config.games import game_file, package_of
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, meant, meant_path
from spag_ray.game.game_form import check_form, listed, scenarios_fault, split_scenarios
from spag_ray.game.protocol import TABOO, Configured, Game, Scripted, strategies_of
from spag_ray.game.renderer import Renderer
from spag_ray.game.styles import game_renderer
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.taboo.game import TabooGame
from spag_ray.tokens import Tokenizer

GROUP = "spag_ray.games"
SHIPPED: dict[str, Callable[[], Game]] = {TABOO: TabooGame, "kuhn": KuhnPoker}
# Imported when played: a job that plays none is not sent them (cluster/launch/parcel.py).
_PACKAGES_OF_GAMES = {
    "textarena": ("spag_ray.games.textarena_game", "TextArenaGame"),
    "openspiel": ("spag_ray.games.openspiel_game", "OpenSpielGame"),
}
_FROM_FILES = "spag_ray_game_"
_OURS = ("spag_ray", "actors", "learners", "cluster")
_PACKAGES: set[str] = set()  # the names of packages that were imported from a user's folder
Scenarios: TypeAlias = Mapping[str, Sequence[str]]  # {full name of a game: its scenarios}


def load_game(name: str, config: RunConfig | None = None) -> Game:
    """The game of this name, of a run if its configuration is given. Raises ConfigError for an unknown name, a class
    that cannot be made, and one that is not a game of two seats."""
    game = game_maker(name, config)()
    check_form(game, name)
    return game


def module_to_send(game: Game) -> ModuleType | None:
    """The module or the package of a user's own that the game's class comes from: other processes may not have it. None
    for a class of this project or of an installed package."""
    name = type(game).__module__
    package = name.partition(".")[0]
    if package in _PACKAGES:
        return sys.modules[package]
    return sys.modules[name] if name.startswith(_FROM_FILES) else None


def game_maker(name: str, config: RunConfig | None = None) -> Callable[[], Game]:
    """What makes the game of this name, anew with each call. Raises ConfigError for an unknown name. A call raises
    ConfigError for a class that cannot be made; the form of what is made is not checked."""
    if name in SHIPPED:
        return _of_run(SHIPPED[name], config)
    package, _, env = name.partition(":")
    if package in _PACKAGES_OF_GAMES and env:
        module, of_env = _PACKAGES_OF_GAMES[package]
        return functools.partial(getattr(importlib.import_module(module), of_env), env)
    if ":" not in name:
        known = {point.name: point for point in entry_points(group=GROUP)}
        if name not in known:
            if name in _PACKAGES_OF_GAMES:
                raise ConfigError(f"game.name: {name}: which of its environments? Write {name}:ENV")
            names = [*SHIPPED, *sorted(known)]
            own = f"{name if name.endswith('.py') else 'my_module'}:MyGame"
            told = f"game.name: {name} is not known; there are {', '.join(names)}, or name your own as {own}"
            raise ConfigError(told + meant(name, [*names, *_PACKAGES_OF_GAMES]))
        try:
            found = known[name].load()
        except Exception as error:
            raise _not_imported(name, known[name].value, error) from error
    else:
        found = _attribute(name, "game.name", lambda value: isinstance(value, type))
    if not callable(found):
        raise ConfigError(f"game.name: {name} is not a class of a game")
    return functools.partial(_made, _of_run(found, config), name)


def own_function(name: str, key: str) -> Callable[..., Any]:
    """A function of the user's own that a key of the configuration names, as FILE.py:NAME or MODULE:NAME. Raises
    ConfigError."""
    found = _attribute(name, key, callable)
    if not callable(found):
        raise ConfigError(f"{key}: {name} is not a function")
    return cast("Callable[..., Any]", found)


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


def _attribute(name: str, key: str, is_meant: Callable[[Any], bool]) -> Any:
    """What `name`, MODULE:ATTRIBUTE, names. `is_meant`: of the module's values, those to suggest."""
    module, _, attribute = name.rpartition(":")
    loaded = _module(module, name, key)
    if (found := getattr(loaded, attribute, None)) is None:
        names = [each for each, value in vars(loaded).items() if is_meant(value)]
        raise ConfigError(f"{key}: {name}: {module} has no {attribute}{meant(attribute, names)}")
    return found


def _of_run(found: Callable[[], Game], config: RunConfig | None) -> Callable[[], Game]:
    if config is not None and isinstance(found, Configured):
        return functools.partial(found.configured, config)
    return found


def _made(found: Callable[[], Game], name: str) -> Game:
    try:
        return found()
    except ConfigError:
        raise
    except Exception as error:
        how = "of this configuration" if isinstance(found, functools.partial) else "without arguments"
        raise ConfigError(f"game.name: {name}: it cannot be made {how} ({error})") from error


def _module(module: str, name: str, key: str) -> Any:
    path = game_file(name)
    if path is None and module.endswith(".py"):
        raise ConfigError(f"{key}: {name}: there is no file {module}{meant_path(module)}")
    try:
        if path is None:
            return importlib.import_module(module)
        if (package := package_of(path)) is not None:
            return _in_package(path, package)
        own = f"{_FROM_FILES}{path.stem}"
        if own in sys.modules and getattr(sys.modules[own], "__file__", None) == str(path.resolve()):
            return sys.modules[own]
        spec = importlib.util.spec_from_file_location(own, path.resolve())
        assert spec is not None
        assert spec.loader is not None
        loaded = importlib.util.module_from_spec(spec)
        sys.modules[own] = loaded
        try:
            spec.loader.exec_module(loaded)
        except BaseException:
            del sys.modules[own]
            raise
    except (Exception, SystemExit) as error:
        hint = meant_path(f"{module}.py") if path is None and "." not in module else ""
        raise _not_imported(name, module, error, hint, key) from error
    return loaded


def _in_package(path: Path, package: Path) -> ModuleType:
    """The module of this file, imported with the packages around it. The folder of the outermost one, `package`, is
    searched meanwhile."""
    file, folder = (os.path.abspath(each) for each in (path, package.parent))
    name = os.path.relpath(file, folder).removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    importlib.invalidate_caches()
    sys.path.insert(0, folder)
    try:
        found = importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        found = None
    finally:
        sys.path.remove(folder)
    if found is None or found.__file__ != file:
        raise ImportError(f"another package is named {package.name}; rename yours")
    if package.name not in _OURS:
        _PACKAGES.add(package.name)
    return found


def _not_imported(name: str, module: str, error: BaseException, hint: str = "", key: str = "game.name") -> ConfigError:
    return ConfigError(f"{key}: {name}: {module} cannot be imported ({type(error).__name__}: {error}){hint}")

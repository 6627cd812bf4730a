"""What a configuration may ask of another game than Adversarial Taboo."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import ImitationConfig, Part, Payoffs, WordsConfig
from spag_ray.config.several_games import GameConfig
from spag_ray.errors import meant

STYLES = ("chat", "lines")  # of a game's messages (styles.py)
_WORDS_OF_TABOO = ("source", "deck", "max_difficulty", "max_held_out_difficulty")
_OBJECTIVE_OF_TABOO = (
    *("listening_coeff", "claiming_coeff", "unsaid_coeff"),
    *("trap_credit", "guess_credit", "information_gain"),
)
_IMITATION_OF_TABOO = ("listening_coeff", "claiming_coeff")


def game_file(name: str) -> Path | None:
    """The file of a user's own game or function, if its name is a path or a module in the current folder; name: a value
    of `game.name` or `objective.advantage`."""
    module, found, _ = name.rpartition(":")
    if not found:
        return None
    folder = module.replace(".", "/")
    paths = [module] if module.endswith(".py") else [f"{folder}.py", f"{folder}/__init__.py"]
    return next((path for path in map(Path, paths) if path.is_file()), None)


def package_of(file: Path) -> Path | None:
    """The outermost folder of the package that a file is in; None for a file that is in none. A relative path is of a
    package below the current folder."""
    outermost = None
    for folder in file.parents[:-1]:
        if not (folder / "__init__.py").is_file():
            break
        outermost = folder
    return outermost


_Part = TypeVar("_Part", bound=Part)


def may_listen(game: GameConfig, num_games: int) -> bool:
    """Whether the game, of a run of so many, may be trained by its hidden fact: a user's own, if it is the only one.
    Whether it has such a fact is found before the run (check_claims)."""
    return num_games == 1 and ":" in game.name


def without_taboo(
    words: WordsConfig, objective: ObjectiveConfig, imitation: ImitationConfig, listens: bool = False
) -> tuple[WordsConfig, ObjectiveConfig, ImitationConfig]:
    """These parts without the settings that have a meaning in Taboo alone: what another game of the same run gets.
    `listens`: as may_listen says."""
    kept = ("listening_coeff", "information_gain") if listens else ()
    return (
        _with_defaults(words, _WORDS_OF_TABOO, kept),
        _with_defaults(objective, _OBJECTIVE_OF_TABOO, kept),
        _with_defaults(imitation, _IMITATION_OF_TABOO, kept),
    )


def _with_defaults(part: _Part, keys: Sequence[str], kept: Sequence[str]) -> _Part:
    return part.model_copy(update={key: type(part).model_fields[key].default for key in keys if key not in kept})


def check_game(
    game: GameConfig,
    words: WordsConfig,
    objective: ObjectiveConfig,
    imitation: ImitationConfig,
    prompts: str,
    render: str,
    preset: str | None,
    listens: bool,
) -> None:
    """Raise ValueError for settings that have a meaning in Taboo alone, if another game is played."""
    if game.is_taboo:
        return
    usual, usual_words = GameConfig(), WordsConfig()
    of_taboo = {
        "preset: published": preset == "published",
        "game.max_turns": game.max_turns != usual.max_turns,
        "game.rules": game.rules != usual.rules,
        "game.max_guesses": game.max_guesses != usual.max_guesses,
        **{f"words.{key}": getattr(words, key) != getattr(usual_words, key) for key in _WORDS_OF_TABOO},
        "objective.listening_coeff": objective.listening_coeff and not listens,
        "objective.claiming_coeff": objective.claiming_coeff,
        "objective.unsaid_coeff": objective.unsaid_coeff,
        "objective.information_gain": objective.information_gain and not listens,
        "imitation.listening_coeff": imitation.listening_coeff and not listens,
        "render: varied": render == "varied",
        "objective.trap_credit: trap": objective.trap_credit == "trap",
        "objective.guess_credit: guess": objective.guess_credit == "guess",
    }
    if asked := next((key for key, value in of_taboo.items() if value), None):
        told = f"game.name: {game.full_name}: {asked} is for the game `taboo`; leave it out"
        raise ValueError(told + meant(game.name, ["taboo"]))
    if game.payoffs != Payoffs():
        raise ValueError(f"game.name: {game.full_name}: its rulings say what a game pays; leave game.payoffs out")
    if prompts not in STYLES:
        raise ValueError(
            f"game.name: {game.full_name}: prompts is {prompts}, but its messages are written as {' or '.join(STYLES)}"
        )
    if imitation.enabled and imitation.source != "scripted":
        raise ValueError(
            f"game.name: {game.full_name}: imitation.source is {imitation.source}, but files are of the game `taboo`; "
            "set it to scripted, or imitation.enabled to false"
        )

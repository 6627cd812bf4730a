"""The games of a run: `games`, or, for one without settings of its own beside the run's, `game`; and what they may
have in a configuration, if they are not Adversarial Taboo.

    games:
      - {name: taboo, share: 0.5, max_turns: 4}
      - {name: kuhn, share: 0.5, objective: {baseline: scenario, role_weights: none}}

    game: {name: kuhn}        is short for        games: [{name: kuhn, share: 1}]

`RunConfig.each_game` is the way from here to the rest of the program: one configuration for each game.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeVar

from pydantic import Field, model_validator

from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import ImitationConfig, Part, Payoffs, WordsConfig
from spag_ray.errors import meant

STYLES = ("chat", "lines")  # of a game's messages (styles.py)
_WORDS_OF_TABOO = ("source", "deck", "max_difficulty", "max_held_out_difficulty")
_OBJECTIVE_OF_TABOO = (
    *("listening_coeff", "claiming_coeff", "unsaid_coeff"),
    *("trap_credit", "guess_credit", "information_gain"),
)
_IMITATION_OF_TABOO = ("listening_coeff", "claiming_coeff")
_Part = TypeVar("_Part", bound=Part)


class GamePackage(NamedTuple):
    """An optional package of games: its module, and one of its environments."""

    module: str
    example: str


PACKAGES = {"textarena": GamePackage("textarena", "TicTacToe-v0"), "openspiel": GamePackage("pyspiel", "leduc_poker")}


class GameConfig(Part):
    name: str = Field(
        "taboo",
        min_length=1,
        description="`taboo`, `kuhn`, `textarena`, `openspiel`, an entry point of the group spag_ray.games, or a class "
        "`my_module:MyGame` (docs/games.md); the other keys but `env` are for `taboo`",
    )
    env: str | None = Field(
        None, min_length=1, description="of textarena or openspiel: the environment (TicTacToe-v0, leduc_poker)"
    )
    max_turns: int = Field(5, ge=1, description="turns of each player")
    rules: Literal["strict", "published"] = Field("strict", description="the referee")
    max_guesses: int = Field(
        1,
        ge=1,
        description="guesses of a defender, at most one a turn; a wrong one before the last does not end the game (not "
        "with rules: published)",
    )
    payoffs: Payoffs = Field(Payoffs(), description="what each end of a game pays its seats")

    @property
    def is_taboo(self) -> bool:
        """Whether the keys that only Adversarial Taboo has are read. Other code asks for what it needs of a game."""
        return self.name == "taboo"

    @property
    def has_cards(self) -> bool:
        """Whether its scenarios are the words of `words`, and its expert plays by the cards of a deck."""
        return self.is_taboo

    @property
    def guesses(self) -> bool:
        """Whether one seat may claim a hidden word, so that guesses, traps and what could have been known count."""
        return self.is_taboo

    @property
    def has_prompt_file(self) -> bool:
        """Whether `prompts` is a prompt file; the messages of other games are their own."""
        return self.is_taboo

    @property
    def full_name(self) -> str:
        """The name in records and for `load_game`: that of an environment is `textarena:TicTacToe-v0`."""
        return self.name if self.env is None else f"{self.name}:{self.env}"

    @property
    def is_own(self) -> bool:
        """Whether it is a class of the user's own, not a shipped or an installed game."""
        return ":" in self.name

    @property
    def package(self) -> GamePackage | None:
        """The package that has this game, by the extra of its name; None if it needs none."""
        return PACKAGES.get(self.full_name.partition(":")[0])

    @model_validator(mode="after")
    def _env_is_of_a_package(self) -> GameConfig:
        if self.name in PACKAGES and self.env is None:
            example = PACKAGES[self.name].example
            raise ValueError(f"name is {self.name}, so env has to name one of its environments ({example})")
        if self.env is not None and self.name not in PACKAGES:
            raise ValueError(
                f"env is {self.env}, but name is {self.name}; set name to {' or '.join(PACKAGES)}, or leave env out"
            )
        return self

    @model_validator(mode="after")
    def _guesses_fit(self) -> GameConfig:
        if self.max_guesses > 1 and self.rules == "published":
            raise ValueError(
                f"max_guesses is {self.max_guesses}, but with rules: published the first guess ends a game; leave one "
                "of them out"
            )
        if self.is_taboo and self.max_guesses > self.max_turns:
            raise ValueError(
                f"max_guesses is {self.max_guesses}, but a defender has {self.max_turns} turns and guesses once in "
                "each; lower it, or raise max_turns"
            )
        return self


class GameObjective(Part):
    """Keys of `objective` that a game has for itself: how its results become rewards. Empty keys are the run's."""

    decay: float | None = Field(None, gt=0, le=1, description="as in objective")
    learn_from: Literal["winners", "both"] | None = Field(None, description="as in objective")
    loser_turns: Literal["all", "deciding"] | None = Field(None, description="as in objective")
    baseline: Literal["none", "moving", "mean", "scenario"] | None = Field(None, description="as in objective")
    baseline_std: Literal["none", "batch"] | None = Field(None, description="as in objective")
    role_weights: Literal["balanced", "none"] | None = Field(None, description="as in objective")
    role_weight_cap: float | None = Field(None, gt=0, description="as in objective")


class SharedGame(GameConfig):
    """One of the games of a run."""

    share: float = Field(gt=0, le=1, description="of the games that are played; the shares add up to 1")
    objective: GameObjective = Field(GameObjective(), description="what differs from the run's `objective`")

    @property
    def alone(self) -> SharedGame:
        """The game as a run of this game alone has it, whose `objective` is this game's."""
        return self.model_copy(update={"share": 1.0, "objective": GameObjective()})


def as_list(data: Mapping[str, Any]) -> Mapping[str, Any]:
    """Settings whose `game` is a list of one game. It keeps its key, so that a fault names what the file has.

    >>> as_list({"game": {"name": "kuhn"}})
    {'game': [{'name': 'kuhn', 'share': 1.0}]}
    """
    if "game" not in data:
        return data
    if "games" in data:
        raise ValueError(
            "game and games are both set; give one game in game, or several in games (-o games.0.KEY=VALUE changes the "
            "first of them)"
        )
    game = data["game"]
    if isinstance(game, Mapping):
        if own := next((key for key in ("share", "objective") if key in game), None):
            raise ValueError(f"game.{own}: a {own} is for several games; write them as games, or leave it out")
        game = {**game, "share": 1.0}
    return {**data, "game": [game]}


def is_short(games: Sequence[SharedGame]) -> bool:
    """Whether `game` says the same as `games`."""
    return tuple(games) == (games[0].alone,)


def as_dumped(dumped: Mapping[str, Any], games: Sequence[SharedGame]) -> dict[str, Any]:
    """A dumped configuration with `game` in place of `games` where that says the same."""
    if "games" not in dumped or not is_short(games):
        return dict(dumped)
    (game,) = dumped["games"]
    short = {key: value for key, value in game.items() if key in GameConfig.model_fields}
    return {("game" if key == "games" else key): short if key == "games" else value for key, value in dumped.items()}


def check_shares(games: Sequence[SharedGame]) -> None:
    """Raise ValueError for games that are no list of different games whose shares add up to 1."""
    names = [game.full_name for game in games]
    if twice := next((name for name in names if names.count(name) > 1), None):
        raise ValueError(f"games: {twice} is there twice; give each game once, with its whole share")
    total = math.fsum(game.share for game in games)
    if abs(total - 1) > 1e-6:
        raise ValueError(f"games: the shares add up to {total:g}; they have to add up to 1")


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

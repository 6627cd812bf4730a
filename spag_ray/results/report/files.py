"""Reads the small files of a run folder, as far as they exist."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import RunFolderError, SpagError, meant_path
from spag_ray.plain_yaml import parse_settings
from spag_ray.results.evaluations import FILE as EVALUATIONS
from spag_ray.results.evaluations import Evaluation, read_evaluations
from spag_ray.results.game_names import UNKNOWN, GameNames, NamesByGame, names_of_all, plain_names, read_names_by_game
from spag_ray.results.matches import Match, of_game, read_matches
from spag_ray.results.ratings import WinMatrix

_Read = TypeVar("_Read")
_FAULTS = (OSError, SpagError, ValueError, TypeError, KeyError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class RunFiles:
    """The content of the files. Missing files are None or empty. `games`: the names of each game.
    `damaged`: {name of an unreadable file: why}. `ended`: (finished, stopped or failed; why); None for a run that is
    running or was killed."""

    folder: Path
    config: RunConfig | None = None
    games: NamesByGame = field(default_factory=lambda: UNKNOWN)
    versions: Mapping[str, Any] = field(default_factory=dict)
    matches: tuple[Match, ...] = ()
    league: WinMatrix = field(default_factory=WinMatrix)
    evaluations: tuple[Evaluation, ...] = ()
    ended: tuple[str, str] | None = None
    damaged: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def game(self) -> GameNames:
        """Names that fit all games."""
        return names_of_all(self.games)

    def of_game(self, name: str) -> RunFiles:
        """What a run of one of its games alone would have."""
        config = None if self.config is None else self.config.of_game(name)
        games = {name: self.games.get(name) or plain_names(name)}
        return replace(self, config=config, games=games, matches=tuple(of_game(self.matches, name)))

    def with_games(self, played: Iterable[str]) -> RunFiles:
        """With the games that were played, where no configuration names them."""
        if self.config is not None or not (games := list(played)):
            return self
        return replace(self, games={name: self.games.get(name) or plain_names(name) for name in games})


def read_files(folder: Path) -> RunFiles:
    """Reads the files of a run folder. Raises RunFolderError if `folder` is not a run folder."""
    if not folder.is_dir():
        told = f"{folder}: no such folder; give the folder of a run (train's --run-dir)"
        raise RunFolderError(told + meant_path(folder))
    if not any((folder / name).exists() for name in ("config.yaml", "metrics.jsonl", "episodes")):
        raise RunFolderError(
            f"{folder} is not a run folder: it has no config.yaml, metrics.jsonl or episodes/; give train's --run-dir"
        )
    damaged: dict[str, str] = {}

    def read(name: str, how: Callable[[Path], _Read], otherwise: _Read) -> _Read:
        path = folder / name
        if not path.exists():
            return otherwise
        try:
            return how(path)
        except _FAULTS as error:
            damaged[name] = " ".join(str(error).replace(f"{folder}/", "").split())[:300]
            return otherwise

    config = read("config.yaml", _config, None)
    return RunFiles(
        folder,
        config=config,
        games=read_names_by_game(folder, config),
        versions=read("versions.json", _mapping, {}),
        matches=read("matches.json", lambda path: tuple(read_matches(path)), ()),
        league=read("league.json", lambda path: WinMatrix.from_json(_mapping(path)["games"]), WinMatrix()),
        evaluations=read(EVALUATIONS, lambda path: tuple(read_evaluations(path)), ()),
        ended=read("ended.json", _ended, None),
        damaged=damaged,
    )


def _config(path: Path) -> RunConfig | None:
    return parse_config(parse_settings(path.read_text(encoding="utf-8"), path.name), path.name)


def _mapping(path: Path) -> dict[str, Any]:
    data = json.loads(path.read_text(encoding="utf-8"))
    if not isinstance(data, dict):
        raise ValueError("it is not a JSON object")
    return data


def _ended(path: Path) -> tuple[str, str] | None:
    data = _mapping(path)
    return str(data["ended"]), str(data.get("reason", ""))

"""Records of 0.2.0, in which the only game of a run has no name: read as if they had it.

>>> named_row({"attacker": "base", "games": []}, Path("no run folder"))
{'game': 'taboo', 'attacker': 'base', 'games': []}

Each function is given a record and where it lies: the run folder's configuration has the name of the game.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from spag_ray.errors import ConfigError
from spag_ray.game.protocol import TABOO
from spag_ray.plain_yaml import read_settings

_OF_GAMES = ("play", "games", "samples", "exploitability")


def named_line(line: dict[str, Any], folder: Path) -> dict[str, Any] | None:
    """A line of metrics.jsonl. None for the sum over several games, which readers find from the lines of each. Guesses
    and traps were Taboo's."""
    if "game" in line or line["kind"] not in (*_OF_GAMES, "held_out"):
        return line
    name = TABOO if line["kind"] == "held_out" else _only_game(folder)
    return None if name is None else {**dict(list(line.items())[:3]), "game": name, **line}  # where it is written now


def named_row(row: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """A row of matches.json."""
    return row if "game" in row else {"game": _only_game(folder) or TABOO, **row}


def named_state(state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The state of a checkpoint: its words, averages of roles, wins of roles, and results of matches."""
    words, baselines, wins = state.get("words"), state.get("baselines"), state.get("role_wins", "")
    if isinstance(wins, dict):
        return state
    game = _only_game(folder) or TABOO
    if words is not None:
        words = named_words(words, folder)
    if baselines is not None and not all(isinstance(each, dict) for each in baselines.values()):
        baselines = {game: baselines}
    wins = {game: wins} if wins else {}
    results = [dict(named_row(row, folder)) for row in state.get("results", ())]
    return {**state, "words": words, "baselines": baselines, "role_wins": wins, "results": results}


def named_words(words: Mapping[str, Any], folder: Path) -> Mapping[str, Any]:
    """The state of a stream of words (WordStream.state)."""
    if "games" in words:
        return words
    rest = {key: value for key, value in words.items() if key != "words"}
    return {"games": [[_only_game(folder) or TABOO, 1.0, words["words"]]], **rest}


def names_of_seats(found: Mapping[str, Any], game: str) -> Mapping[str, Any]:
    """What a run folder's game.json has of a game."""
    own: Mapping[str, Any] = found["games"][game] if "games" in found else found
    return own


def _only_game(folder: Path) -> str | None:
    """The name of the only game of a run; None if it has several."""
    path = folder / "config.yaml"
    try:
        return _game_of(path, path.stat().st_mtime_ns)
    except (OSError, ConfigError):
        return TABOO


@lru_cache(maxsize=8)
def _game_of(path: Path, _: int) -> str | None:
    """Read once for all lines of a file, and again when the configuration has changed."""
    settings = read_settings(path)
    if "games" in settings:
        return None
    game = settings.get("game")
    game = game if isinstance(game, Mapping) else {}
    name, env = game.get("name", TABOO), game.get("env")
    return str(name) if env is None else f"{name}:{env}"

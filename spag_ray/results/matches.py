"""Games between named players, by word: played by a run's evaluation and `spag-ray match`, stored in matches.json.

>>> match = Match("spag-1", "imitated", (Game("river", Outcome.ATTACKER_WINS, 4), Game("piano", Outcome.TIED, 8)))
>>> match.outcomes[Outcome.TIED], match.score(Role.ATTACKER)
(1, 0.75)
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from spag_ray.episodes.episode import Episode
from spag_ray.errors import InputError
from spag_ray.game.protocol import TABOO
from spag_ray.game.rules import Outcome, Role
from spag_ray.host.whole_files import locked, write_atomically
from spag_ray.results.former_records import named_row
from spag_ray.results.ratings import mean_score


@dataclass(frozen=True)
class Game:
    """One game: its word, its outcome, and the number of turns of both players up to the deciding one."""

    scenario: str
    outcome: Outcome
    num_turns: int


@dataclass(frozen=True)
class Match:
    """Games of one attacker against one defender, in the order of their words. A stage that plays against itself has
    its name in both seats. `game`: which one was played, by its full name. `models`: what tells the two from others of
    their names; None for a run's own stages."""

    attacker: str
    defender: str
    games: tuple[Game, ...]
    game: str = TABOO
    models: tuple[str | None, str | None] = (None, None)

    @property
    def key(self) -> tuple[str, str, str]:
        """What tells it from the other matches of a file."""
        return self.attacker, self.defender, self.game

    @property
    def title(self) -> str:
        same = self.attacker == self.defender
        return self.attacker if same else f"{self.attacker} v {self.defender}"

    @property
    def outcomes(self) -> Counter[Outcome]:
        return Counter(game.outcome for game in self.games)

    def score(self, role: Role) -> float:
        """The seat's mean score (docs/matches.md); 0.5 without games."""
        return mean_score(self.outcomes, role)

    @classmethod
    def of(cls, attacker: str, defender: str, episodes: Iterable[Episode], game: str) -> Match:
        games = (Game(each.scenario, each.verdict.outcome, each.verdict.length) for each in episodes)
        return cls(attacker, defender, tuple(games), game)

    def as_json(self) -> dict[str, Any]:
        """`games` are rows of word, outcome and number of turns."""
        games = [[game.scenario, str(game.outcome), game.num_turns] for game in self.games]
        row = {"game": self.game, "attacker": self.attacker, "defender": self.defender, "games": games}
        return {**row, "models": list(self.models)} if any(self.models) else row

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Match:
        """The inverse of `as_json`. Raises KeyError, TypeError or ValueError for a malformed row."""
        games = (Game(str(word), Outcome(outcome), int(length)) for word, outcome, length in row["games"])
        attacker, defender = (None if each is None else str(each) for each in row.get("models", (None, None)))
        return cls(
            str(row["attacker"]), str(row["defender"]), tuple(games), str(row["game"]), models=(attacker, defender)
        )


def write_matches(path: Path, matches: Sequence[Match]) -> None:
    """Write a JSON list with one match per line; an existing file is replaced atomically."""
    rows = ",\n".join(json.dumps(match.as_json(), ensure_ascii=False) for match in matches)
    write_atomically(path, f"[\n{rows}\n]\n")


def change_matches(path: Path, change: Callable[[list[Match]], Sequence[Match]]) -> None:
    """Replace the matches of a file by `change` of them, if that is another list; without a file, `change` gets none.

    A run, a run that resumes and `spag-ray match` all change the same file: a lock around reading and writing keeps one
    from dropping what another has just added. `change` is called under the lock, so it may not wait for anything.
    Raises InputError as `read_matches` does, RunFolderError if another process keeps the lock.
    """
    with locked(path):
        found = read_matches(path) if path.exists() else []
        changed = list(change(list(found)))
        if changed != found:
            write_matches(path, changed)


def others(found: Iterable[Match], matches: Iterable[Match]) -> list[Match]:
    """Those of `found` that are between other players, or of another game, than all of `matches`."""
    ours = {match.key for match in matches}
    return [match for match in found if match.key not in ours]


def of_game(matches: Iterable[Match], game: str) -> list[Match]:
    """The matches of one game."""
    return [match for match in matches if match.game == game]


def read_matches(path: Path) -> list[Match]:
    """The matches in matches.json. Raises InputError with the file's name if `write_matches` did not write it."""
    try:
        rows = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(rows, list):
            raise TypeError("it is not a list")
        beside = path.with_name(f"{path.name}.run")  # of `spag-ray match`, which keeps its configuration there
        folder = beside if beside.is_dir() else path.parent
        return [Match.from_json(named_row(row, folder)) for row in rows]
    except (OSError, KeyError, TypeError, ValueError, OverflowError, RecursionError) as error:
        raise InputError(f"{path}: no matches can be read from it ({type(error).__name__}: {error})") from error

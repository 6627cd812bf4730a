"""How many games there were, and how they ended."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from spag_ray.episodes.episode import Played
from spag_ray.game.rules import GameEnd, Outcome, end_of


@dataclass
class GameCount:
    """Games and how they ended, their turns and sampled tokens."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    ends: Counter[GameEnd] = field(default_factory=Counter)
    num_turns: int = 0
    num_tokens: int = 0

    @property
    def num_games(self) -> int:
        return self.outcomes.total()

    def add(self, game: Played) -> None:
        self.outcomes[game.verdict.outcome] += 1
        self.ends[end_of(game.verdict)] += 1
        self.num_turns += game.num_turns
        self.num_tokens += game.num_tokens

    def __add__(self, other: GameCount) -> GameCount:
        return GameCount(
            self.outcomes + other.outcomes,
            self.ends + other.ends,
            self.num_turns + other.num_turns,
            self.num_tokens + other.num_tokens,
        )


def count_by_game(games: Iterable[Played]) -> dict[str, GameCount]:
    """{name of the game: its games}, in order of first appearance."""
    found: dict[str, GameCount] = {}
    for each in games:
        found.setdefault(each.game, GameCount()).add(each)
    return found

"""How many games there were, and how they ended."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from spag_ray.ending import ending
from spag_ray.episode import Episode
from spag_ray.game import Outcome


@dataclass
class GameCount:
    """Games and how they ended, their turns and sampled tokens."""

    outcomes: Counter[Outcome] = field(default_factory=Counter)
    endings: Counter[str] = field(default_factory=Counter)
    num_turns: int = 0
    num_tokens: int = 0

    @property
    def num_games(self) -> int:
        return self.outcomes.total()

    def add(self, episode: Episode) -> None:
        self.outcomes[episode.verdict.outcome] += 1
        self.endings[str(ending(episode.verdict))] += 1
        self.num_turns += len(episode.turns)
        self.num_tokens += episode.num_tokens

"""What the buffer counts: games and how they ended, what waits. meter.py asks for it and writes it down."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from cluster.stream import StreamCounts
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


@dataclass(frozen=True)
class BufferSample:
    """The buffer at one moment. `played`: {phase: what came since its process began}; `waiting` episodes, of which the
    oldest came `oldest_s` ago."""

    played: Mapping[str, GameCount]
    waiting: int
    oldest_s: float
    stream: StreamCounts | None

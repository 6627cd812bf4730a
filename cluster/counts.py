"""What the buffer counts: games and how they ended, what waits. meter.py asks for it and writes it down."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from cluster.stream import StreamCounts
from spag_ray.game_count import GameCount


@dataclass(frozen=True)
class BufferSample:
    """The buffer at one moment. `played`: {phase: what came since its process began}; `waiting` episodes, of which the
    oldest came `oldest_s` ago."""

    played: Mapping[str, GameCount]
    waiting: int
    oldest_s: float
    stream: StreamCounts | None

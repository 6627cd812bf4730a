"""What a referee says about one turn, and how folded text leads back to the written characters."""

from __future__ import annotations

from dataclasses import dataclass

from spag_ray.game.end_reason import EndReason
from spag_ray.game.rules import Outcome


@dataclass(frozen=True)
class Ruling:
    """A turn decided the game: how, why (`reason` is the same in words), and which characters [start, end) did."""

    outcome: Outcome
    end_reason: EndReason
    reason: str
    span: tuple[int, int]


@dataclass(frozen=True)
class FoldedText:
    """Text made comparable. `origins[i]` is the range of the written text that folded character i came from;
    None when characters correspond one to one."""

    text: str
    origins: tuple[tuple[int, int], ...] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The written characters behind folded characters [start, end), for start < end."""
        if self.origins is None:
            return start, end
        return self.origins[start][0], self.origins[end - 1][1]

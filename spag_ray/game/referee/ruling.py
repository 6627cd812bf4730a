"""A referee's ruling on one turn, and the mapping from folded text back to the original characters."""

from __future__ import annotations

from dataclasses import dataclass

from spag_ray.game.end_reason import EndReason
from spag_ray.game.rules import Outcome


@dataclass(frozen=True)
class Ruling:
    """A turn decided the game: the outcome, why (`reason` says it in words), and the deciding characters [start,
    end)."""

    outcome: Outcome
    end_reason: EndReason
    reason: str
    span: tuple[int, int]


@dataclass(frozen=True)
class FoldedText:
    """Folded text (folding.py). `origins[i]` is the range of the original text that folded character i came from; None
    when characters correspond one to one."""

    text: str
    origins: tuple[tuple[int, int], ...] | None = None

    def span(self, start: int, end: int) -> tuple[int, int]:
        """The original characters of folded characters [start, end), for start < end."""
        if self.origins is None:
            return start, end
        return self.origins[start][0], self.origins[end - 1][1]

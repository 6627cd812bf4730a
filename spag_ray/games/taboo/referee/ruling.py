"""The mapping from folded text back to the original characters, for the span of a ruling."""

from __future__ import annotations

from dataclasses import dataclass

from spag_ray.game.protocol import Ruling

__all__ = ["FoldedText", "Ruling"]


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

"""What records of a shipped game have in common, to find records that no such game has made."""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass

from spag_ray.game.end_reason import EndReason
from spag_ray.game.protocol import TABOO


@dataclass(frozen=True)
class RecordForm:
    """`alternates`: whether turns do, the attacker's first; `reasons`: why games end, None if any text may be."""

    alternates: bool = False
    reasons: Set[str] | None = None


_SHIPPED = {TABOO: RecordForm(alternates=True, reasons=frozenset(EndReason)), "kuhn": RecordForm(alternates=True)}


def form_of(game: str) -> RecordForm:
    """The form of a game's records by its full name; any form, if it is not a shipped game."""
    return _SHIPPED.get(game, RecordForm())

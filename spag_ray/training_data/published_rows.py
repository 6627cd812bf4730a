"""Games -> the published code's training rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from spag_ray.episodes.formats import Row
from spag_ray.game.rules import Role
from spag_ray.training_data.rewards import rewarded_turns

# (history before the turn, role of the turn, target word, max turns) -> the player's prompt text.
RenderQuery = Callable[[Sequence[Mapping[str, str]], Role, str, int], str]


def to_samples(games: Sequence[Mapping[str, Any]], decay: float, rules: str, render_query: RenderQuery) -> list[Row]:
    """Games -> training rows with the query that the turn's player read; empty turns are left out."""
    rows = []
    for number, index, sample in rewarded_turns(games, decay, rules):
        if sample["target"]:
            game = games[number]
            role = Role(sample["role"])
            query = render_query(game["history"][:index], role, game["target_word"], game["max_turns"])
            rows.append({"query": query, **sample})
    return rows

"""Which game each place of a sequence has, so that every game has its share at any time.

>>> plan = SharePlan((0.5, 0.25, 0.25))
>>> [plan.at(place) for place in range(6)]
[(0, 0), (1, 0), (2, 0), (0, 1), (0, 2), (1, 1)]
"""

from __future__ import annotations

from collections.abc import Sequence


class SharePlan:
    """A function of the shares alone: the next place goes to the game that lacks most. Of any first n places each game
    has its share of n, give or take less than the number of games."""

    def __init__(self, shares: Sequence[float]) -> None:
        self._shares = tuple(shares)
        self._counts = [0] * len(self._shares)
        self._games = bytearray()  # the game of every place so far

    def at(self, place: int) -> tuple[int, int]:
        """(the game of a place, how many places before it that game has)."""
        if len(self._shares) == 1:  # a run of one game may have any number of places
            return 0, place
        while len(self._games) <= place:
            total = len(self._games) + 1
            lacking = [share * total - count for share, count in zip(self._shares, self._counts, strict=True)]
            game = lacking.index(max(lacking))
            self._counts[game] += 1
            self._games.append(game)
        game = self._games[place]
        return game, self._games.count(game, 0, place)

"""Shares of outcomes with intervals.

>>> low, high = wilson_interval(8, 10)
>>> round(low, 3), round(high, 3)
(0.49, 0.943)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from statistics import NormalDist

from spag_ray.game import Outcome, Role


def wilson_interval(successes: int, trials: int, confidence: float = 0.95) -> tuple[float, float]:
    """The Wilson score interval of a share (E. B. Wilson, 1927); (0, 1) when nothing was tried."""
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_score(outcomes: Mapping[Outcome, int], role: Role) -> float:
    """The seat's score, method.md: (wins + the other's breaches + half the ties) / games; 0.5 without games."""
    games = sum(outcomes.values())
    if games == 0:
        return 0.5
    points = 0.0
    for outcome, count in outcomes.items():
        if outcome is Outcome.TIED:
            points += 0.5 * count
        elif outcome.winner is role or outcome.breaker is role.other:
            points += count
    return points / games

"""Shares of outcomes with intervals, results between players, and what is computed from the results: ratings, and an
equilibrium of versions.

>>> low, high = wilson_interval(8, 10)
>>> round(low, 3), round(high, 3)
(0.49, 0.943)
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from statistics import NormalDist
from typing import Any

from spag_ray.game.rules import Outcome, Role

PULL = 0.4  # games of every seat with one virtual player, half won: a pull that grows with nothing
MOST_STEPS = 10_000  # of the fit, which takes 5 to 100 unless results contradict each other


def wilson_interval(successes: float, trials: float) -> tuple[float, float]:
    """The Wilson score interval of a share at 95% (E. B. Wilson, 1927); (0, 1) without trials."""
    if trials == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf(0.975)
    share = successes / trials
    centre = (share + z * z / (2 * trials)) / (1 + z * z / trials)
    half = z / (1 + z * z / trials) * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials**2))
    return max(0.0, centre - half), min(1.0, centre + half)


def mean_score(outcomes: Mapping[Outcome, int], role: Role) -> float:
    """The seat's score: (wins + the other's breaches + half the ties) / games; 0.5 without games."""
    games = sum(outcomes.values())
    return sum(outcome.score(role) * count for outcome, count in outcomes.items()) / games if games else 0.5


def _margin(outcomes: Mapping[Outcome, int]) -> float:
    """The attacker's, if a game is worth 1: the sum over games."""
    return (2 * mean_score(outcomes, Role.ATTACKER) - 1) * sum(outcomes.values())


class WinMatrix:
    """Outcomes of games by (attacker, defender), and margins: half of what the attacker got more than the defender."""

    def __init__(self) -> None:
        self._outcomes: dict[tuple[str, str], Counter[Outcome]] = {}
        self._margins: dict[tuple[str, str], float] = {}  # sums over games

    def add(self, attacker: str, defender: str, outcome: Outcome, margin: float | None = None) -> None:
        """`margin`: by the outcome alone if None, 1 for a win or the other's breach."""
        pair = attacker, defender
        self._outcomes.setdefault(pair, Counter())[outcome] += 1
        self._margins[pair] = self._margins.get(pair, 0.0) + (_margin({outcome: 1}) if margin is None else margin)

    def outcomes(self, attacker: str, defender: str) -> Counter[Outcome]:
        return self._outcomes.get((attacker, defender), Counter())

    def margin(self, player: str, other: str) -> tuple[float, int]:
        """(margins in favour of `player`, games) of its games against another one, in both seats."""
        there, back = (player, other), (other, player)
        games = self.outcomes(*there).total() + self.outcomes(*back).total()
        return self._margins.get(there, 0.0) - self._margins.get(back, 0.0), games

    def players(self) -> set[str]:
        return {player for pair in self._outcomes for player in pair}

    def among(self, is_in: Callable[[str], bool]) -> WinMatrix:
        """The games in which `is_in` is true for both players."""
        found = WinMatrix()
        found._outcomes = {pair: outcomes for pair, outcomes in self._outcomes.items() if all(map(is_in, pair))}
        found._margins = {pair: self._margins[pair] for pair in found._outcomes}
        return found

    def losses_against(self, player: str, of: Callable[[str], bool]) -> tuple[float, int]:
        """(points, games) of `player` in either seat against those for whom `of` is true; half a point for a tie."""
        points, games = 0.0, 0
        for (attacker, defender), outcomes in self._outcomes.items():
            if (player == attacker and of(defender)) or (player == defender and of(attacker)):
                role = Role.ATTACKER if player == attacker else Role.DEFENDER
                points += mean_score(outcomes, role) * outcomes.total()
                games += outcomes.total()
        return points, games

    def ratings(self) -> dict[tuple[str, Role], float]:
        """Bradley-Terry ratings of every player in each seat that it played, on Elo's scale (400 points are odds of 10
        to 1), with mean 0. They are maximum-likelihood estimates with a slight pull to 0, so that a player that won
        every game has a finite rating."""
        import choix
        import numpy as np

        seats = sorted(
            {(a, Role.ATTACKER) for a, _ in self._outcomes} | {(d, Role.DEFENDER) for _, d in self._outcomes}
        )
        place = {seat: number for number, seat in enumerate(seats)}
        if not seats:
            return {}
        wins = np.zeros((len(seats) + 1, len(seats) + 1))  # the last one is the virtual player
        wins[-1, :-1] = wins[:-1, -1] = PULL / 2
        for (attacker, defender), outcomes in self._outcomes.items():
            us, them = place[attacker, Role.ATTACKER], place[defender, Role.DEFENDER]
            points = mean_score(outcomes, Role.ATTACKER) * outcomes.total()
            wins[us, them] += points
            wins[them, us] += outcomes.total() - points
        strengths = choix.ilsr_pairwise_dense(wins, max_iter=MOST_STEPS)[:-1]
        strengths -= strengths.mean()
        return {seat: round(float(400 / math.log(10) * value), 1) for seat, value in zip(seats, strengths, strict=True)}

    @classmethod
    def from_json(cls, rows: Iterable[Mapping[str, Any]]) -> WinMatrix:
        """The inverse of `as_json`. Raises KeyError, TypeError or ValueError for a malformed row."""
        matrix = cls()
        for row in rows:
            pair = row["attacker"], row["defender"]
            outcomes = Counter({Outcome(name): n for name, n in row.items() if name not in (*Role, "margin")})
            counts = [type(count) is int and count >= 0 for count in outcomes.values()]
            if not all(counts) or not all(isinstance(name, str) for name in pair):
                raise ValueError(f"it has names or counts that are none: {row}")
            margin = row["margin"] if "margin" in row else _margin(outcomes)
            if not math.isfinite(margin):
                raise ValueError(f"a margin is {margin}")
            matrix._outcomes[pair], matrix._margins[pair] = outcomes, margin
        return matrix

    def as_json(self) -> list[dict[str, Any]]:
        return [
            {"attacker": pair[0], "defender": pair[1], "margin": round(self._margins[pair], 6)}
            | {str(outcome): n for outcome, n in sorted(outcomes.items())}
            for pair, outcomes in sorted(self._outcomes.items())
        ]


def equilibrium(values: Sequence[Sequence[float]]) -> list[float]:
    """[versions] The Nash equilibrium of the game in which two players choose a version to play for them: the shares of
    a mixture of versions that no version gains from. `values` [versions, versions]: what the first gains from the
    second, on average over both seats; what one gains the other loses. Of several equilibria it is the one that the
    solver finds (scipy's HiGHS), the same one each time.

    >>> [round(share, 3) for share in equilibrium([[0, -1, 1], [1, 0, -1], [-1, 1, 0]])]  # rock, paper, scissors
    [0.333, 0.333, 0.333]
    >>> equilibrium([[0, 1], [-1, 0]])
    [1.0, 0.0]
    """
    import numpy as np
    from scipy.optimize import linprog

    matrix = np.asarray(values, dtype=float)
    if not np.allclose(matrix, -matrix.T):
        raise ValueError("what one version gains from another, the other has to lose")
    count = len(matrix)
    # The shares x, and the least v that the mixture gains from any version: maximise v.
    found = linprog(
        c=[0.0] * count + [-1.0],
        A_ub=np.column_stack([-matrix.T, np.ones(count)]),
        b_ub=np.zeros(count),
        A_eq=[[1.0] * count + [0.0]],
        b_eq=[1.0],
        bounds=[(0.0, 1.0)] * count + [(None, None)],
    )
    assert found.x is not None, found.message  # there always is one
    shares = np.clip(found.x[:count], 0.0, 1.0)
    return [float(share) for share in shares / shares.sum()]

"""Which player is better, and how certain this is: scores, ratings and a paired test, with intervals, from matches.

Games on the same word are not independent, so intervals resample words, not games. With several seeds, seeds are
resampled first and then words within each.

>>> from spag_ray.results.matches import Game
>>> easy = [Game(f"word{n}", Outcome.ATTACKER_WINS, 4) for n in range(20)]
>>> hard = [Game(f"word{n}", Outcome.TIED, 8) for n in range(20)]
>>> new = [Match("new", "old", tuple(easy)), Match("old", "new", tuple(hard))]
>>> score([new], "new", "old")
Estimate(value=0.75, low=0.75, high=0.75)
>>> better(new, "new", "old").p_value < 0.001
True
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spag_ray.errors import InputError
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.matches import Game, Match
from spag_ray.results.ratings import WinMatrix

NUM_DRAWS = 10_000
NUM_RATING_DRAWS = 200
SEATS = tuple(Role)


@dataclass(frozen=True)
class Estimate:
    """A value and the 95% interval around it."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Comparison:
    """One player compared with another: the mean score difference over `num_words` words, and its one-sided p-value
    under random signs."""

    difference: float
    p_value: float
    num_words: int


def players(matches: Iterable[Match]) -> list[str]:
    """All players of the matches, in order of first appearance."""
    return list(dict.fromkeys(name for match in matches for name in (match.attacker, match.defender)))


def score(
    runs: Sequence[Sequence[Match]],
    player: str,
    other: str,
    breach_free: bool = False,
    roles: Sequence[Role] = SEATS,
    seed: int = 0,
) -> Estimate:
    """The mean over `roles` of the player's score against `other` in that seat (docs/matches.md).

    `runs`: the matches of each seed. `breach_free` leaves out games that ended by a rule violation.
    Raises InputError if the two did not meet in every role.
    """
    tallies = [_tally(matches, player, other, breach_free, roles) for matches in runs]
    if not tallies or any((tally[..., 1].sum(axis=0) == 0).any() for tally in tallies):
        raise InputError(f"{player} and {other} have not met in every seat that is needed")
    value = float(np.mean([_mean_score(tally.sum(axis=0)) for tally in tallies]))
    random = np.random.default_rng(seed)
    # [seed, draw]: the score for each draw of words of each seed. Draws of seeds then select from these.
    by_seed = np.stack([_redrawn(tally, random) for tally in tallies])
    if len(tallies) > 1:
        seeds = random.integers(len(tallies), size=(len(tallies), NUM_DRAWS))
        # If a seed is drawn twice, its words are drawn independently each time, so each place takes another draw.
        draws = random.integers(NUM_DRAWS, size=(len(tallies), NUM_DRAWS))
        drawn = by_seed[seeds, draws].mean(axis=0)
    else:
        drawn = by_seed[0]
    low, high = np.nanquantile(drawn, [0.025, 0.975])
    return Estimate(value, float(low), float(high))


def _tally(
    matches: Iterable[Match], player: str, other: str, breach_free: bool, roles: Sequence[Role]
) -> NDArray[np.float64]:
    """[words, roles, 2]: the player's points and games against `other`."""
    words: dict[str, NDArray[np.float64]] = {}
    for match in matches:
        for place, role in enumerate(roles):
            ours, theirs = (match.attacker, match.defender)[:: 1 if role is Role.ATTACKER else -1]
            if (ours, theirs) != (player, other):
                continue
            for game in match.games:
                if breach_free and game.outcome.breaker is not None:
                    continue
                cell = words.setdefault(game.target_word, np.zeros((len(roles), 2)))
                cell[place] += (game.outcome.score(role), 1)
    return np.array(list(words.values())) if words else np.zeros((1, len(roles), 2))


def _mean_score(sums: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """[..., roles, 2] points and games -> [...] the mean over roles of points per game; nan where a role has none."""
    with np.errstate(invalid="ignore"):
        return (sums[..., 0] / sums[..., 1]).mean(axis=-1)


def _redrawn(tally: NDArray[np.float64], random: np.random.Generator) -> NDArray[np.float64]:
    """[draws]: the mean score over the same number of words, drawn with replacement."""
    counts = random.multinomial(len(tally), np.full(len(tally), 1 / len(tally)), size=NUM_DRAWS)
    return _mean_score(np.tensordot(counts, tally, axes=1))


def largest_group(matches: Sequence[Match]) -> list[Match]:
    """The matches of the largest set of seats that are connected by games; if several are equally large, of the last
    one. Seats that are not connected cannot be compared."""
    groups: list[tuple[set[tuple[str, Role]], list[Match]]] = []
    for match in matches:
        seats, members = {(match.attacker, Role.ATTACKER), (match.defender, Role.DEFENDER)}, [match]
        for group in [group for group in groups if group[0] & seats]:
            groups.remove(group)
            seats, members = seats | group[0], group[1] + members
        groups.append((seats, members))
    return max(reversed(groups), key=lambda group: len(group[0]), default=(set(), []))[1]


def ratings(matches: Sequence[Match], seed: int = 0) -> dict[tuple[str, Role], Estimate]:
    """Bradley-Terry ratings of every player in each seat (WinMatrix.ratings). The intervals resample words."""
    by_word: dict[str, list[tuple[str, str, Game]]] = {}
    for match in matches:
        for game in match.games:
            by_word.setdefault(game.target_word, []).append((match.attacker, match.defender, game))
    if not by_word:
        return {}
    words = list(by_word.values())
    values = _rated(words)
    random = np.random.default_rng(seed)
    drawn: dict[tuple[str, Role], list[float]] = {seat: [] for seat in values}
    for _ in range(NUM_RATING_DRAWS):
        for seat, value in _rated([words[index] for index in random.integers(len(words), size=len(words))]).items():
            drawn[seat].append(value)
    intervals = {seat: np.quantile(found, [0.025, 0.975]) for seat, found in drawn.items()}
    return {seat: Estimate(value, *map(float, intervals[seat])) for seat, value in values.items()}


def _rated(words: Iterable[Iterable[tuple[str, str, Game]]]) -> Mapping[tuple[str, Role], float]:
    matrix = WinMatrix()
    for games in words:
        for attacker, defender, game in games:
            matrix.add(attacker, defender, game.outcome)
    return matrix.ratings()


def better(matches: Sequence[Match], player: str, other: str, seed: int = 0) -> Comparison:
    """Whether `player` is better than `other`: a paired test over words (scipy's permutation test of paired samples).

    For each word, their scores are compared in the same seat: against each other, and against every third player that
    both have met. Raises InputError if there is no word on which they can be compared.
    """
    from scipy.stats import permutation_test

    ours, theirs = _by_situation(matches, player, other), _by_situation(matches, other, player)
    both = ours.keys() & theirs.keys()
    words = sorted({word for word, _, _ in both})
    if not words or player == other:
        raise InputError(f"{player} and {other} have played no common opponent on a common word")
    pairs = np.zeros((len(words), 3))
    place = {word: row for row, word in enumerate(words)}
    for situation in both:
        pairs[place[situation[0]]] += (float(np.mean(ours[situation])), float(np.mean(theirs[situation])), 1)
    mine, its = pairs[:, 0] / pairs[:, 2], pairs[:, 1] / pairs[:, 2]
    if len(words) == 1:  # scipy's test needs two words; of the two signs of one word, one gives the observed result
        difference = float(mine[0] - its[0])
        return Comparison(difference, 0.5 if difference > 0 else 1.0, 1)
    found = permutation_test(
        (mine, its),
        lambda a, b, axis=-1: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        alternative="greater",
        n_resamples=NUM_DRAWS - 1,
        rng=np.random.default_rng(seed),
    )
    return Comparison(float(np.mean(mine - its)), float(found.pvalue), len(words))


def _by_situation(matches: Iterable[Match], player: str, rival: str) -> dict[tuple[str, Role, str], list[float]]:
    """{(word, seat, opponent): the player's scores}. The rival is "" as an opponent, so that both players' keys match
    when they met each other."""
    scores: dict[tuple[str, Role, str], list[float]] = {}
    for match in matches:
        for role, us, them in (
            (Role.ATTACKER, match.attacker, match.defender),
            (Role.DEFENDER, match.defender, match.attacker),
        ):
            if us == player != them:
                for game in match.games:
                    key = (game.target_word, role, "" if them == rival else them)
                    scores.setdefault(key, []).append(game.outcome.score(role))
    return scores


def turns_to_win(matches: Iterable[Match], role: Role) -> float | None:
    """Mean number of turns of both players in the games that the seat won by play; None if it won none."""
    lengths = [game.num_turns for match in matches for game in match.games if game.outcome is Outcome.win_of(role)]
    return float(np.mean(lengths)) if lengths else None

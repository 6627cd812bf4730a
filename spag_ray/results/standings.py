"""Which player is better, and how certain this is: scores, ratings and a paired test, with intervals, from matches.

Games on the same word are not independent, so intervals are over words, not games: Student's t for as many words as
there are, because a bootstrap of few words gives intervals that are too narrow. With several seeds they are Student's t
over seeds, for the same reason, and at least as wide as over the words of all.

>>> from spag_ray.results.matches import Game
>>> easy = [Game(f"word{n}", Outcome.ATTACKER_WINS, 4) for n in range(20)]
>>> hard = [Game(f"word{n}", Outcome.TIED, 8) for n in range(20)]
>>> new = [Match("new", "old", tuple(easy)), Match("old", "new", tuple(hard))]
>>> found = score([new], "new", "old")
>>> found.value, round(found.low, 2), round(found.high, 2)
(0.75, 0.52, 0.89)
>>> better(new, "new", "old").p_value < 0.001
True
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from itertools import chain
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from spag_ray.errors import InputError
from spag_ray.game.protocol import SEATS
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.matches import Match
from spag_ray.results.ratings import PULL, WinMatrix, wilson_interval
from spag_ray.stages import order_of

NUM_DRAWS = 10_000
MIN_WORDS = 5  # with fewer, no interval holds
SMALLEST_ERROR = 1e-9  # below it all words have the same score, which says nothing: then games count as independent
ELO_PER_NAT = 400 / math.log(10)
ENDS = {
    "attacker wins": (Outcome.ATTACKER_WINS,),
    "defender wins": (Outcome.DEFENDER_WINS,),
    "breaches": (Outcome.ATTACKER_BREACH, Outcome.DEFENDER_BREACH),
    "ties": (Outcome.TIED,),
}


@dataclass(frozen=True)
class Estimate:
    """A value and the 95% interval around it."""

    value: float
    low: float
    high: float
    has_interval: bool = True  # else too few words were played for one, and low and high are the least and the most

    @property
    def in_percent(self) -> str:
        """Of a share.

        >>> Estimate(0.5, 0.412, 0.588).in_percent, Estimate(0.5, 0, 1, has_interval=False).in_percent
        ('50 [41, 59]', '50')
        """
        told = f" [{100 * self.low:.0f}, {100 * self.high:.0f}]" if self.has_interval else ""
        return f"{100 * self.value:.0f}{told}"

    def __str__(self) -> str:
        """A share.

        >>> str(Estimate(0.5, 0.412, 0.588)), str(Estimate(0.5, 0, 1, has_interval=False))
        ('0.50 [0.41, 0.59]', '0.50')
        """
        return f"{self.value:.2f}" + (f" [{self.low:.2f}, {self.high:.2f}]" if self.has_interval else "")


@dataclass(frozen=True)
class Comparison:
    """One player compared with another: the one-sided p-value, under random signs, of their mean score difference over
    `num_words` words."""

    p_value: float
    num_words: int


def players(matches: Iterable[Match]) -> list[str]:
    """All players of the matches, in order of first appearance."""
    return list(dict.fromkeys(name for match in matches for name in (match.attacker, match.defender)))


def score(
    runs: Sequence[Sequence[Match]], player: str, other: str, breach_free: bool = False, roles: Sequence[Role] = SEATS
) -> Estimate:
    """The mean over `roles` of the player's score against `other` in that seat (docs/matches.md).

    `runs`: the matches of each seed. `breach_free` leaves out games that ended by a rule violation.
    Raises InputError if the two did not meet in every role.
    """
    tallies = [_tally(matches, player, other, breach_free, roles) for matches in runs]
    if not tallies or any((tally[..., 1].sum(axis=0) == 0).any() for tally in tallies):
        raise InputError(f"{player} and {other} have not met in every seat that is needed")
    by_seed = np.array([_mean_score(tally.sum(axis=0)) for tally in tallies])
    value = float(by_seed.mean())
    if any(_num_words(tally[..., 1].sum(axis=1)) < MIN_WORDS for tally in tallies):
        return Estimate(value, 0.0, 1.0, has_interval=False)
    if len(tallies) == 1:
        return Estimate(value, *_score_interval(tallies[0]))
    half = float(_student(np.array(len(tallies))) * by_seed.std(ddof=1)) / math.sqrt(len(tallies))
    # Few seeds may agree by chance: no surer than their words, of which several seeds may have played the same.
    low, high = _score_interval(_tally(chain(*runs), player, other, breach_free, roles))
    return Estimate(value, max(0.0, min(low, value - half)), min(1.0, max(high, value + half)))


def share(match: Match, points: Callable[[Outcome], float]) -> Estimate:
    """The mean of `points`, from 0 to 1, over the games of a match. There has to be one."""
    tally = _by_word((game.scenario, 0, points(game.outcome)) for game in match.games)
    has_interval = bool(_num_words(tally[..., 1].sum(axis=1)) >= MIN_WORDS)
    return Estimate(float(_mean_score(tally.sum(axis=0))), *_score_interval(tally), has_interval)


def outcome_cells(match: Match, kinds: Collection[Sequence[Outcome]] = ENDS.values()) -> list[str]:
    """How often the match ended in each of these, in per cent of its games, with 95% intervals over words; "-" without
    games."""
    if not match.games:
        return ["-"] * len(kinds)
    return [share(match, frozenset(kind).__contains__).in_percent for kind in kinds]


def _score_interval(tally: NDArray[np.float64]) -> tuple[float, float]:
    """The 95% interval of the mean score in `tally`: Wilson's, for as many games as would be as informative if no two
    were on the same word (N. Dean and M. Pagano, 2015). (0, 1) with fewer than MIN_WORDS words."""
    games = tally[..., 1].sum(axis=0)  # [roles]
    means = tally[..., 0].sum(axis=0) / games
    share, num_words = float(means.mean()), _num_words(tally[..., 1].sum(axis=1))
    if num_words < MIN_WORDS:
        return 0.0, 1.0
    error = float(_error(((tally[..., 0] - means * tally[..., 1]) / games).mean(axis=1), num_words))
    independent = share * (1 - share) / error**2 if error > SMALLEST_ERROR and 0 < share < 1 else float(num_words)
    normal = NormalDist().inv_cdf(0.975)  # the errors to each side that wilson_interval takes, instead of Student's
    trials = independent * (normal / float(_student(num_words))) ** 2
    return wilson_interval(share * trials, trials)


def _tally(
    matches: Iterable[Match], player: str, other: str, breach_free: bool, roles: Sequence[Role]
) -> NDArray[np.float64]:
    """[words, roles, 2]: the player's points and games against `other`."""
    found = []
    for match in matches:
        for place, role in enumerate(roles):
            ours, theirs = (match.attacker, match.defender)[:: 1 if role is Role.ATTACKER else -1]
            if (ours, theirs) == (player, other):
                found += [
                    (game.scenario, place, game.outcome.score(role))
                    for game in match.games
                    if not (breach_free and game.outcome.breaker is not None)
                ]
    return _by_word(found, len(roles))


def _by_word(games: Iterable[tuple[str, int, float]], num_roles: int = 1) -> NDArray[np.float64]:
    """(word, place of the role, points) of each game -> [words, roles, 2]: points and games."""
    words: dict[str, NDArray[np.float64]] = {}
    for word, place, points in games:
        words.setdefault(word, np.zeros((num_roles, 2)))[place] += (points, 1)
    return np.array(list(words.values())) if words else np.zeros((1, num_roles, 2))


def _mean_score(sums: NDArray[np.floating[Any]]) -> NDArray[np.float64]:
    """[..., roles, 2] points and games -> [...] the mean over roles of points per game; nan where a role has none."""
    with np.errstate(invalid="ignore"):
        return (sums[..., 0] / sums[..., 1]).mean(axis=-1)


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


def matrix_of(matches: Iterable[Match]) -> WinMatrix:
    """The outcomes of all games."""
    matrix = WinMatrix()
    for match in matches:
        for game in match.games:
            matrix.add(match.attacker, match.defender, game.outcome)
    return matrix


def elo(matches: Sequence[Match], player: str) -> tuple[str, dict[Role, float]] | None:
    """(the earliest stage that games connect with `player` in both seats, {role: how much better `player` is rated
    there}), by WinMatrix.ratings. None without such a stage: with itself nothing can be compared.

    >>> from spag_ray.results.matches import Game
    >>> won, lost = Game("river", Outcome.ATTACKER_WINS, 4), Game("river", Outcome.DEFENDER_WINS, 4)
    >>> matches = [Match("new", "old", (won,)), Match("old", "new", (lost,)), Match("old", "old", (won, lost))]
    >>> elo(matches, "new")[0], elo(matches[:2], "new")
    ('old', None)
    """
    connected = largest_group([match for match in matches if match.games])
    rated = matrix_of(connected).ratings()
    others = [name for name in players(connected) if name != player and all((name, role) in rated for role in Role)]
    if not others or any((player, role) not in rated for role in Role):
        return None
    first = min(others, key=order_of)
    return first, {role: round(rated[player, role] - rated[first, role], 1) for role in Role}


def ratings(matches: Sequence[Match]) -> dict[tuple[str, Role], Estimate]:
    """How much better each player is in a seat than the mean of the players rated there, on Elo's scale: 400 points are
    ten times the odds against the same opponent. Equally good players have the true rating 0, whichever seat the game
    favours.

    The values are Bradley-Terry ratings (WinMatrix.ratings). Their errors are linearised and summed by word, and the
    interval is Student's t over words (K.-Y. Liang and S. L. Zeger, 1986; t for few clusters: C. B. Hansen, 2007).

    A seat has no rating with games on fewer than MIN_WORDS words or with games that all ended alike: its interval would
    not hold. The only player of a seat has none either. `matches` are connected by games (largest_group).
    """
    from scipy.optimize import brentq
    from scipy.sparse import csr_array
    from scipy.special import expit

    games = [(match, game) for match in matches for game in match.games]
    if not games:
        return {}
    seats = matrix_of(matches).ratings()
    strengths = np.array(list(seats.values())) / ELO_PER_NAT
    place = {seat: number for number, seat in enumerate(seats)}
    row_of = {word: row for row, word in enumerate(dict.fromkeys(game.scenario for _, game in games))}
    attackers = np.array([place[match.attacker, Role.ATTACKER] for match, _ in games])
    defenders = np.array([place[match.defender, Role.DEFENDER] for match, _ in games])
    numbers, ones = np.arange(len(games)), np.ones(len(games))
    of_word = csr_array((ones, ([row_of[game.scenario] for _, game in games], numbers)))  # [words, games]
    of_attacker = csr_array((ones, (numbers, attackers)), shape=(len(games), len(seats)))
    of_defender = csr_array((ones, (numbers, defenders)), shape=(len(games), len(seats)))
    design = of_attacker - of_defender  # times strengths: the logit of what the attacker is expected to score
    scores, expected = np.array([game.outcome.score(Role.ATTACKER) for _, game in games]), expit(design @ strengths)
    information = (design.T * (expected * (1 - expected)) @ design).toarray()
    virtual = brentq(lambda rating: expit(strengths - rating).mean() - 0.5, strengths.min() - 1, strengths.max() + 1)
    pull = PULL * expit(strengths - virtual) * expit(virtual - strengths)  # it holds errors down too
    information += np.diag(pull) - np.outer(pull, pull) / pull.sum()
    covariance = np.linalg.pinv(information, hermitian=True)
    errors = (of_word @ (design * (scores - expected)[:, None])) @ covariance  # [words, seats]
    num_words = _num_words((of_word @ abs(design)).toarray())
    found = {}
    for role in Role:
        rated = [
            number
            for number, (_, own) in enumerate(seats)
            if own is role
            and num_words[number] >= MIN_WORDS
            and np.ptp(scores[(attackers == number) | (defenders == number)]) > 0
        ]
        if len(rated) < 2:
            continue
        values = ELO_PER_NAT * (strengths[rated] - strengths[rated].mean())
        against = np.eye(len(rated)) - 1 / len(rated)  # each of them against their mean
        error = _error(errors[:, rated] @ against, num_words[rated])
        of_games = np.sqrt(np.diag(against @ covariance[np.ix_(rated, rated)] @ against))
        margins = ELO_PER_NAT * _student(num_words[rated]) * np.where(error > SMALLEST_ERROR, error, of_games)
        for number, value, margin in zip(rated, values, margins, strict=True):
            found[list(seats)[number]] = Estimate(float(value), float(value - margin), float(value + margin))
    return found


def _num_words(games: NDArray[np.float64]) -> NDArray[np.float64]:
    """[words, ...] games -> [...] how many words they are worth, fewer than all if some have more games than others:
    the effective sample size (L. Kish, 1965)."""
    return games.sum(axis=0) ** 2 / (games**2).sum(axis=0)


def _error(by_word: NDArray[np.float64], num_words: NDArray[np.float64]) -> NDArray[np.float64]:
    """[words, ...] each word's part of a value's error -> [...] the value's standard error."""
    return np.sqrt(num_words / (num_words - 1) * ((by_word - by_word.mean(axis=0)) ** 2).sum(axis=0))


def _student(num_words: NDArray[np.float64]) -> NDArray[np.float64]:
    """How many standard errors a 95% interval reaches to each side."""
    from scipy.special import stdtrit

    return np.asarray(stdtrit(num_words - 1, 0.975))


def better(matches: Sequence[Match], player: str, other: str, seed: int = 0) -> Comparison:
    """Whether `player` is better than `other`: a paired test over words (scipy's permutation test of paired samples).

    For each word, their scores are compared in the same seat: against each other, and against every third player that
    both have met. Raises InputError if there is no word on which they can be compared.
    """
    from scipy.stats import permutation_test

    ours, theirs = by_situation(matches, player, other), by_situation(matches, other, player)
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
        return Comparison(0.5 if mine[0] > its[0] else 1.0, 1)
    found = permutation_test(
        (mine, its),
        lambda a, b, axis=-1: np.mean(a - b, axis=axis),
        permutation_type="samples",
        vectorized=True,
        alternative="greater",
        n_resamples=NUM_DRAWS - 1,
        rng=np.random.default_rng(seed),
    )
    return Comparison(float(found.pvalue), len(words))


def by_situation(matches: Iterable[Match], player: str, rival: str) -> dict[tuple[str, Role, str], list[float]]:
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
                    key = (game.scenario, role, "" if them == rival else them)
                    scores.setdefault(key, []).append(game.outcome.score(role))
    return scores


def turns_to_win(matches: Iterable[Match], role: Role) -> float | None:
    """Mean number of turns of both players in the games that the seat won by play; None if it won none."""
    lengths = [game.num_turns for match in matches for game in match.games if game.outcome is Outcome.win_of(role)]
    return float(np.mean(lengths)) if lengths else None

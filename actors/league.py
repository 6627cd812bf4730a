"""The league: the trained policy plays against itself, its earlier versions, and fixed models.

    self        both seats are the newest weights, and both seats' turns are trained on
    past        an earlier version that was kept. Which ones is the run's meta-strategy (Lanctot et al., 2017):
                uniform     any: fictitious self-play (Heinrich et al., 2015), if all games are against them
                hard, even  prioritised fictitious self-play (Vinyals et al., 2019): by the learner's losses x, or
                            by x (1 - x)
                nash        a Nash equilibrium of the game between versions: PSRO (Lanctot et al., 2017)
    fixed       a model folder that never changes

Against another player the learner plays each seat equally often, on the same words, and only its own turns are
trained on. All random draws are a function of the seed and of the games played so far.

A league counts the versions that training makes, from 0 for the base model. Turns are stamped with the number under
which weights were published. A run that resumes publishes its weights again, under the next number, because no number
is used twice. So numbers may be higher than versions; `League.numbers` says by how much.
"""

from __future__ import annotations

import bisect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from spag_ray.config.opponents import LeagueConfig
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import Role
from spag_ray.results.ratings import WinMatrix, equilibrium

PAST = "past "  # prefix of the policy name on turns played by an earlier version
MOST_RATED = 100  # versions, in addition to those that are kept
PRIOR_GAMES = 4  # an opponent's hardness, and what two versions gain from each other, start as if these had been even
LEAST_HARDNESS = 0.02
_GOLDEN = (math.sqrt(5) - 1) / 2
EXPLORED = 0.1  # of the games against versions, where most are against an equilibrium: equally against all


@dataclass(frozen=True)
class Opponents:
    """Game number -> names of the players of its seats. `shares`: the share of games against each opponent; the rest is
    self-play. Games 2k and 2k + 1 have the same opponent, once in each seat. Numbers of `stage` begin at 0; each stage
    begins elsewhere in a sequence that gives any run of games its shares (Weyl's, by the golden ratio)."""

    seed: int
    shares: tuple[tuple[str, float], ...] = ()
    stage: str = ""

    def mixed_with(self, names: Sequence[str], share: float) -> Opponents:
        """Add these opponents: together they get `share` of the games, divided equally."""
        return replace(self, shares=tuple((name, share / len(names)) for name in names) + self.shares)

    def __call__(self, number: int) -> tuple[str, str]:
        if not self.shares:
            return "attacker", "defender"
        pair, learner_defends = divmod(number, 2)
        draw = (random.Random(f"{self.seed}/league/{self.stage}").random() + pair * _GOLDEN) % 1.0
        for name, share in self.shares:
            if draw < share:
                if learner_defends:
                    return seat_of(name, Role.ATTACKER), "defender"
                return "attacker", seat_of(name, Role.DEFENDER)
            draw -= share
        return "attacker", "defender"


def seat_of(opponent: str, role: Role) -> str:
    """The arena's name of an opponent's player in this seat."""
    return f"{opponent}/{role}"


@dataclass(frozen=True)
class PastVersion:
    """A kept version of the learner: the model folder of each trained policy."""

    version: int
    folders: Mapping[str, str]


@dataclass
class League:
    """A run's record of its players: kept versions, and results of every pair. `newest`: the version that training has
    made last. `numbers`: (the published number from which on it holds, by how much numbers are higher than versions);
    unlike the rest it is not in checkpoints, because numbers are never taken back. `shares`: of the games against kept
    versions, those of each place, as drawn last; drawn again after a resume. `places`: the versions drawn last."""

    config: LeagueConfig
    seed: int
    kept: list[PastVersion] = field(default_factory=list)
    matrix: WinMatrix = field(default_factory=WinMatrix)
    draws: int = 0
    newest: int | None = None
    numbers: list[tuple[int, int]] = field(default_factory=list)
    shares: list[float] = field(default_factory=list)
    places: list[int] = field(default_factory=list)

    @property
    def is_open(self) -> bool:
        """Whether there are opponents other than the learner itself."""
        return self.config.past_share > 0 or bool(self.config.fixed)

    def opponents(self, past: int) -> Opponents:
        """The opponents, with `past` places that hold one past version each."""
        drawn = self.shares if len(self.shares) == past else [1 / past for _ in range(past)]
        shares = [(f"past-{number}", self.config.past_share * share) for number, share in enumerate(drawn)]
        shares += [(f"fixed-{number}", fixed.share) for number, fixed in enumerate(self.config.fixed)]
        return Opponents(self.seed, tuple(shares))

    def reached(self, num_trained: int, number: int) -> bool:
        """Training has made its version `num_trained`, which is published as `number`. Returns False if the league had
        it before: a resumed run publishes it again."""
        before, self.newest = self.newest, num_trained
        if number - self.newest != (self.numbers[-1][1] if self.numbers else 0):
            self.numbers.append((number, number - self.newest))
        return self.newest != before

    def version_of_number(self, number: int) -> int:
        higher_by = [by for first, by in self.numbers if first <= number]
        return number - higher_by[-1] if higher_by else number

    def number_of(self, version: int) -> int:
        """The number under which a version was published last."""
        higher_by = [by for first, by in self.numbers if first - by <= version]
        return version + higher_by[-1] if higher_by else version

    def wants(self, version: int) -> bool:
        """Whether this version is to be kept."""
        return self.config.past_share > 0 and version % self.config.snapshot_every == 0

    def keep(self, past: PastVersion) -> list[PastVersion]:
        """Keep a version; returns the versions dropped to stay within max_snapshots. The kept versions stay spread over
        the run: the oldest and the newest are kept, and the version whose neighbours are closest to each other goes.
        With `choose: nash` the one goes that an equilibrium plays least."""
        self.kept.append(past)
        dropped = []
        while len(self.kept) > self.config.max_snapshots:
            if self.config.choose == "nash":
                ranks = list(zip(self.mixture()[:-1], range(len(self.kept) - 1), strict=True))
            else:
                ranks = [
                    (self.kept[place + 1].version - self.kept[place - 1].version, place)
                    for place in range(1, len(self.kept) - 1)
                ]
            dropped.append(self.kept.pop(min(ranks)[1] if ranks else 0))
        return dropped

    def draw(self, count: int, again: bool = False) -> list[PastVersion]:
        """`count` of the kept versions, for the next games; a version is repeated only if there are fewer, or if it
        stands for much of an equilibrium. One that was drawn last time keeps its place, so its engine has nothing to
        load. `again`: the same ones as at the last draw, if no game was recorded since."""
        if not again:
            self.draws += 1
        before, self.places, self.shares = self.places, [], []
        if not self.kept or not count:
            return []
        chance = random.Random(f"{self.seed}/past/{self.draws}")
        mixture, all_are_met = self.mixture(), count >= len(self.kept)
        if all_are_met:
            drawn = [place % len(self.kept) for place in range(count)]
        elif self.config.choose == "nash":
            drawn = _spread(mixture, count, chance.random())
        else:
            drawn, weights = [], dict(enumerate(mixture))
            while len(drawn) < count:
                drawn += chance.choices(list(weights), list(weights.values()))
                del weights[drawn[-1]]
        versions = [past.version for past in self.kept]
        self.places = _in_place([versions[number] for number in drawn], before)
        numbers = [versions.index(version) for version in self.places]
        # Where all are met, each gets its share of the games.
        self.shares = [mixture[number] / numbers.count(number) if all_are_met else 1 / count for number in numbers]
        return [self.kept[number] for number in numbers]

    def mixture(self) -> list[float]:
        """The meta-strategy: the share of the games against earlier versions that each kept version is to get."""
        if self.config.choose == "nash":
            shares, all_alike = self._equilibrium(), EXPLORED / len(self.kept)
            return [(1 - EXPLORED) * share + all_alike for share in shares]
        weights = [self._weight(past) for past in self.kept]
        return [weight / sum(weights) for weight in weights]

    def _weight(self, past: PastVersion) -> float:
        if self.config.choose == "uniform":
            return 1.0
        lost = self.hardness(past)
        return lost if self.config.choose == "hard" else max(lost * (1 - lost), LEAST_HARDNESS)

    def _equilibrium(self) -> list[float]:
        """Of the kept versions that have met another one; what two gain that have not is taken to be 0."""
        met: dict[tuple[int, int], float] = {}
        for first, second in itertools.combinations(range(len(self.kept)), 2):
            gained, games = self._gained(self.kept[first], self.kept[second])
            if games:
                met[first, second] = gained / (games + PRIOR_GAMES)
                met[second, first] = -met[first, second]
        known = sorted({number for pair in met for number in pair})
        if not known:
            return [1 / len(self.kept)] * len(self.kept)
        found = equilibrium([[met.get((first, second), 0.0) for second in known] for first in known])
        shares = dict(zip(known, found, strict=True))
        return [shares.get(number, 0.0) for number in range(len(self.kept))]

    def _gained(self, past: PastVersion, other: PastVersion) -> tuple[float, int]:
        """(what the one's policies won from the other's, games), in both seats."""
        pairs = [(f"{one}@{past.version}", f"{two}@{other.version}") for one in past.folders for two in other.folders]
        found = [self.matrix.margin(*pair) for pair in pairs]
        return sum(gained for gained, _ in found), sum(games for _, games in found)

    def hardness(self, past: PastVersion) -> float:
        """The learner's losses against this version as a share of their games; starts at one half, at least
        LEAST_HARDNESS. The learner was a later version then; games that this version played as the learner, against
        earlier ones and fixed opponents, say nothing of it."""
        points, games = 0.5 * PRIOR_GAMES, float(PRIOR_GAMES)

        def is_later_learner(player: str) -> bool:
            return player.rpartition("@")[0] in past.folders and version_of(player) > past.version

        for policy in past.folders:
            lost, played = self.matrix.losses_against(f"{policy}@{past.version}", is_later_learner)
            points, games = points + lost, games + played
        return max(points / games, LEAST_HARDNESS)

    def record(self, episodes: Iterable[Episode]) -> None:
        """Add finished games; without opponents none is counted."""
        for episode in episodes if self.is_open else ():
            players = players_of(episode, self.version_of_number)
            self.matrix.add(*players, episode.verdict.outcome, _margin(episode))

    def restore(self, state: Mapping[str, Any] | None, is_there: Callable[[PastVersion], bool]) -> None:
        """The inverse of `as_json`, without versions that no longer exist; None is the beginning."""
        state = state or League(self.config, self.seed).as_json()
        kept = [PastVersion(past["version"], past["folders"]) for past in state["kept"]]
        self.kept = [past for past in kept if is_there(past)]
        self.matrix = WinMatrix.from_json(state["games"])
        self.draws = state["draws"]
        self.newest, self.places = state["newest"], list(state.get("places", ()))

    def as_json(self) -> dict[str, Any]:
        """What a checkpoint has of it."""
        return {
            "kept": [{"version": past.version, "folders": dict(past.folders)} for past in self.kept],
            "draws": self.draws,
            "newest": self.newest,
            "places": list(self.places),
            "games": self.matrix.as_json(),
        }

    def summary(self) -> dict[str, Any]:
        """`as_json` with the number of each kept version and its share of the games against them, and ratings of
        these, of the newest MOST_RATED versions and of fixed opponents. Fitting takes time with the cube of their
        number, so a long run does not rate all versions."""
        versions = sorted({version_of(player) for player in self.matrix.players()}, reverse=True)
        rated = {past.version for past in self.kept} | set(versions[:MOST_RATED])
        fixed = {fixed.model for fixed in self.config.fixed}
        among = self.matrix.among(lambda name: version_of(name) in rated or name.rpartition("@")[0] in fixed)
        ratings = {f"{player} as {role}": value for (player, role), value in among.ratings().items()}
        state = self.as_json()
        mixture = self.mixture() if self.kept else []
        kept = [
            past | {"number": self.number_of(past["version"]), "share": round(share, 4)}
            for past, share in zip(state["kept"], mixture, strict=True)
        ]
        return state | {"kept": kept, "ratings": ratings}


def _margin(episode: Episode) -> float | None:
    """Half of what the game pays the one seat more than the other; None where it pays nothing of its own."""
    first, second = episode.verdict.payoffs or (None, None)
    return None if first is None or second is None else (first - second) / 2


def _spread(shares: Sequence[float], count: int, start: float) -> list[int]:
    """[count] Places for these shares, as evenly as `count` places can be: systematic sampling, whose `start` is from 0
    to 1. On average each gets its share.

    >>> _spread([0.5, 0.25, 0.25], 4, 0.5)
    [0, 0, 1, 2]
    """
    ends = list(itertools.accumulate(shares))
    return [min(bisect.bisect_right(ends, (place + start) / count), len(ends) - 1) for place in range(count)]


def _in_place(drawn: Sequence[int], before: Sequence[int]) -> list[int]:
    """`drawn` in an order in which as many as can be have the place that they had before.

    >>> _in_place([1, 2, 3], [3, 5, 1])
    [3, 2, 1]
    """
    left, kept = list(drawn), dict[int, int]()
    for place, version in enumerate(before[: len(drawn)]):
        if version in left:
            left.remove(version)
            kept[place] = version
    return [kept[place] if place in kept else left.pop(0) for place in range(len(drawn))]


def version_of(player: str) -> int:
    """Of a name as `players_of` makes it; -1 without a version."""
    version = player.rpartition("@")[2]
    return int(version) if version.isdecimal() else -1


def players_of(episode: Episode, version_of_number: Callable[[int], int] = int) -> tuple[str, str]:
    """(attacker, defender) as policy@version; if weights changed during the game, the version of the oldest turn."""
    names = {}
    for role in Role:
        turns = [turn for turn in episode.turns if turn.role is role]
        oldest = min(turns, key=lambda turn: turn.first_version, default=None)
        names[role] = "nobody"
        if oldest is not None:
            names[role] = f"{oldest.policy.removeprefix(PAST)}@{version_of_number(oldest.first_version)}"
    return names[Role.ATTACKER], names[Role.DEFENDER]

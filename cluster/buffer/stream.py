"""Play in parallel with the learner, and a bound on how far it runs ahead.

    word stream --lease--> GameTask --> arena --> episode --> queue --take(version)--> learner

Every version of the weights trains on `games_per_version` different episodes, and each episode is used `reuse` times.
Permits are counted in uses. The uses of waiting episodes and of games under way never exceed what the versions up to
(current + max_lag) will take. So with max_lag 0 a version's games are all played by that version, as in `rounds`.
Nothing older than max_lag versions is handed out: older episodes are evicted and counted, and new games are played for
their remaining uses. (The bound follows AReaL, arXiv 2505.24298, eq. 3; evicting is ours.)

It never deadlocks: when no permit is free, (max_lag + 1) * games_per_version uses wait or are under way, less at most
reuse - 1 that make no whole game. As reuse <= max_lag + 1 and no game has more than `reuse` uses, these belong to at
least `games_per_version` different games.

The state of a stream is a function of the episode log, of a small cursor (`GameStream.cursor`: which episodes are used
up, and which batch is handed out), and of the leases (`GameStream.leases`: which games are under way, and where).
`GameStream.restore` rebuilds it from these.

With `words.games_per_word` above 1 a version takes whole groups: all games of a word that is compared. It waits for
them as long as games are under way or may start. If none can come (permits are bounded), it takes games of groups that
are not whole, so it never deadlocks here either. The rest of a group of which a game was evicted comes last.

Plain classes, no Ray; cluster/buffer/buffer_actor.py hosts them.
"""

from __future__ import annotations

import copy
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from actors.arena import GameTask
from cluster.buffer.log_mark import LogMark, LogTail, Numbers, WinRates
from spag_ray.config.parts import ReplayOrder, StreamConfig
from spag_ray.episodes.episode import Played
from spag_ray.episodes.log import LogPlace
from spag_ray.game.words import Lease, WordStream
from spag_ray.stages import STREAM

STAGE = str(STREAM)


@dataclass
class _Entry:
    number: int
    data: bytes
    versions: Mapping[str, int]
    priority: float
    uses_left: int
    came_at: float = field(default_factory=time.monotonic)


class ReplayQueue:
    """Episodes that wait for the learner, at most as many as there are permits; each is handed out `reuse` times."""

    def __init__(self, order: ReplayOrder, reuse: int, seed: int) -> None:
        self._order = order
        self._reuse = reuse
        self._random = random.Random(f"{seed}/replay")
        self._entries: list[_Entry] = []

    def __len__(self) -> int:
        return len(self._entries)

    @property
    def oldest_s(self) -> float:
        """How long the first episode has waited; 0 if nothing waits."""
        return time.monotonic() - self._entries[0].came_at if self._entries else 0.0

    def add(
        self, number: int, data: bytes, versions: Mapping[str, int], priority: float, uses_left: int | None = None
    ) -> None:
        """`versions`: for each learning policy, the oldest weights that sampled one of its turns."""
        self._entries.append(_Entry(number, data, versions, priority, self._reuse if uses_left is None else uses_left))

    def evict(self, is_stale: Callable[[Mapping[str, int]], bool]) -> list[int]:
        """Drop episodes that are too old; returns their numbers."""
        stale = [entry.number for entry in self._entries if is_stale(entry.versions)]
        self._entries = [entry for entry in self._entries if not is_stale(entry.versions)]
        return stale

    @property
    def num_uses(self) -> int:
        """How often the waiting episodes will be handed out, in total."""
        return sum(entry.uses_left for entry in self._entries)

    def uses_left(self) -> dict[int, int]:
        """{number: uses left} of episodes that were handed out and will be again."""
        return {entry.number: entry.uses_left for entry in self._entries if entry.uses_left < self._reuse}

    @property
    def numbers(self) -> list[int]:
        """Of the games that wait."""
        return [entry.number for entry in self._entries]

    def take(
        self, count: int, group_size: int = 1, is_whole: Callable[[int], bool] = lambda number: True
    ) -> list[_Entry]:
        """`count` different episodes, in the configured order: oldest first, newest first, or drawn with
        probabilities in proportion to their priorities (Efraimidis and Spirakis, 2006). Games of a group, `group_size`
        numbers in a row, stay together, at the place of the first of them. Groups that are whole, as `is_whole` says of
        each game's number, come before others."""
        ordered = list(self._entries)
        if self._order == "recent":
            ordered.reverse()
        elif self._order == "prioritized":
            ordered.sort(key=lambda entry: -(self._random.random() ** (1.0 / max(entry.priority, 1e-3))))
        if group_size > 1:
            first: dict[int, int] = {}
            for rank, entry in enumerate(ordered):
                first.setdefault(entry.number // group_size, rank)
            ordered.sort(key=lambda entry: (not is_whole(entry.number), first[entry.number // group_size]))
        taken = ordered[:count]
        for entry in taken:
            entry.uses_left -= 1
        self._entries = [entry for entry in self._entries if entry.uses_left]
        return taken


@dataclass
class StreamCounts:
    """Counts since the stream started. `lag`: {age in versions: episodes handed out}."""

    begun: int = 0
    finished: int = 0
    lost: int = 0
    repeated: int = 0
    evicted: int = 0
    handed_out: int = 0
    waiting: int = 0
    permits_free: int = 0
    lag: Counter[int] = field(default_factory=Counter)


@dataclass
class Leases:
    """`out`: {game under way: (its arena, the request that it answered)}; `gone`: arenas that were given up, which get
    no more games."""

    out: dict[int, tuple[str, str]] = field(default_factory=dict)
    gone: set[str] = field(default_factory=set)

    def give_up(self, holder: str) -> list[int]:
        """Give up a dead arena; returns its games."""
        lost = [number for number, (who, _) in self.out.items() if who == holder]
        for number in lost:
            del self.out[number]
        self.gone.add(holder)
        return lost


class GameStream:
    """Words, permits and the queue between arenas and learner. `versions`: {policy that learns: the weights it starts
    with}; `seats`: game number -> its two players."""

    def __init__(
        self,
        words: WordStream,
        config: StreamConfig,
        versions: Mapping[str, int],
        seed: int,
        seats: Callable[[int], tuple[str, str]] = lambda number: ("attacker", "defender"),
    ) -> None:
        self._words = words
        self._config = config
        self._seed = seed
        self._seats = [(0, seats)]  # (the first game, who plays it and later ones)
        self._queue = ReplayQueue(config.replay, config.reuse, seed)
        self._num_given = 0  # the number after that of the newest game that was given out
        self._leases = Leases()
        self._out: dict[int, Lease] = {}
        self._seen = Numbers()
        self._finished_with = Numbers()
        self._batch: dict[int, bytes] = {}
        self._repeated: set[int] = set()
        self._versions = dict(versions)
        self._lineage = Lineage([(0, dict(versions))])
        self._num_learned = 0
        self._win_rates = WinRates()
        self._tail = LogTail()
        self._counts = StreamCounts()

    def cursor(self) -> dict[str, Any]:
        """The state that is not in the log, as plain JSON."""
        return {
            "versions": self._versions,
            "numbers": list(self._lineage.starts),
            "num_learned": self._num_learned,
            "batch": list(self._batch),
            "finished_with": self._finished_with.as_json(),
            "uses_left": {str(number): uses for number, uses in self._queue.uses_left().items()},
            "counts": vars(self._counts) | {"lag": {str(lag): n for lag, n in self._counts.lag.items()}},
            "log": self._tail.advance(self._is_finished).as_json(),
        }

    def leases(self) -> Leases:
        """A copy."""
        return Leases(dict(self._leases.out), set(self._leases.gone))

    def restore(
        self,
        cursor: Mapping[str, Any] | None,
        records: Iterable[tuple[Played, bytes]],
        leases: Leases | None = None,
        mark: LogMark | None = None,
    ) -> None:
        """Restore the state from `cursor`, the log and `leases`. Without leases, games that were under way are given
        out again. Without a cursor, every episode of the log waits to be trained on. `records` are those after the
        cursor's `mark`; all, if there is no mark that fits the log."""
        self._tail = LogTail(mark)
        if mark is not None:
            self._seen = copy.deepcopy(mark.seen)
            self._win_rates = copy.deepcopy(mark.rates)
        uses: dict[str, int] = {}
        batch: list[int] = []
        if cursor is not None:
            self._versions = dict(cursor["versions"])
            self._lineage = Lineage.from_cursor(cursor)
            self._num_learned = cursor["num_learned"]
            self._finished_with = Numbers(*cursor["finished_with"])
            lag = Counter({int(lag): count for lag, count in cursor["counts"]["lag"].items()})
            self._counts = StreamCounts(**cursor["counts"] | {"lag": lag})
            uses, batch = cursor["uses_left"], cursor["batch"]
        self._batch = dict.fromkeys(batch, b"")
        for game, data in records:
            number = game.number
            if number in self._seen:
                continue
            self._seen.add(number)
            self._tail.keep(game)
            priority = self._win_rates.surprise(game)
            if number in self._batch:
                self._batch[number] = data
            if number not in self._finished_with and (number not in self._batch or str(number) in uses):
                left = uses.get(str(number))
                self._queue.add(number, data, self._versions_of(game), priority, left)
        self._batch = {number: data for number, data in self._batch.items() if data}  # the log may be damaged
        self._repeated = {number for number in self._batch if self._is_repeated(uses.get(str(number), 0))}
        self._words = self._words.resumed(self._seen.end, self._seen.missing())
        if leases is not None:
            out = {number: leases.out[number] for number in sorted(leases.out) if number not in self._seen}
            self._leases = Leases(out, set(leases.gone))
            self._out = {number: self._words.lease_again(number) for number in out}
        self._num_given = max([self._seen.end, *(number + 1 for number in self._out)])

    def lease(self, holder: str, count: int, request: str = "") -> list[GameTask]:
        """Up to `count` games to play, limited by the free permits; none for an arena that was given up. A repeated
        `request` (its answer was lost with the buffer) gets the same games."""
        if holder in self._leases.gone:
            return []
        numbers = [number for number, whose in self._leases.out.items() if request and whose == (holder, request)]
        if not numbers:
            for _ in range(min(count, self.permits_free)):
                lease = self._words.lease()
                self._num_given = max(self._num_given, lease.index + 1)
                self._out[lease.index] = lease
                self._leases.out[lease.index] = holder, request
                numbers.append(lease.index)
            self._counts.begun += len(numbers)
        return [self._task(self._out[number]) for number in numbers]

    def is_gone(self, holder: str) -> bool:
        return holder in self._leases.gone

    def add(self, game: Played, data: bytes) -> bool:
        """Add a played game; False if it was added before. A game without a known lease (its arena was given up, or the
        buffer has lost the lease) counts like any other if it comes first."""
        number = game.number
        if number in self._seen:
            self._counts.repeated += 1
            return False
        self._seen.add(number)
        self._leases.out.pop(number, None)
        lease = self._out.pop(number, None)
        if lease is not None:
            self._words.done(lease)
        else:
            self._words.played(number)
        self._counts.finished += 1
        self._queue.add(number, data, self._versions_of(game), self._win_rates.surprise(game))
        self._tail.keep(game)
        return True

    def written(self, places: Mapping[int, LogPlace], end: LogPlace, identity: int | None) -> None:
        """Episodes that were added, or restored, are in the log: {number: where}, in its order."""
        self._tail.write(places, end, identity)

    def give_up(self, holder: str) -> int:
        """Give a dead arena's games to others; returns how many."""
        lost = self._leases.give_up(holder)
        for number in lost:
            self._words.give_back(self._out.pop(number))
        self._counts.lost += len(lost)
        return len(lost)

    def take(self) -> list[bytes] | None:
        """The episodes of one version, or None while too few are new enough. Returns the same episodes until
        `advance`."""
        if self._batch:
            return list(self._batch.values())
        for number in self._queue.evict(self._is_stale):
            self._finished_with.add(number)
            self._counts.evicted += 1
        if not self._has_enough():
            return None
        taken = self._queue.take(self._config.games_per_version, self._words.games_per_word, self._is_of_whole_group)
        self._counts.handed_out += len(taken)
        for entry in taken:
            self._counts.lag[self._lag(entry.versions)] += 1
            if not entry.uses_left:
                self._finished_with.add(entry.number)
        self._batch = {entry.number: entry.data for entry in taken}
        self._repeated = {entry.number for entry in taken if self._is_repeated(entry.uses_left)}
        return list(self._batch.values())

    def repeated(self) -> set[int]:
        """The numbers of those taken episodes that an earlier version was trained on too."""
        return set(self._repeated)

    def meet(self, seats: Callable[[int], tuple[str, str]]) -> None:
        """Games that are given out from now on have these players, from the next pair of games on."""
        oldest = min(self._out, default=self._num_given)
        while len(self._seats) > 1 and self._seats[1][0] <= oldest:
            self._seats.pop(0)  # no game under way needs these
        self._seats.append((self._num_given + self._num_given % 2, seats))

    def advance(self, versions: Mapping[str, int]) -> None:
        """Call when the taken games are trained on and new weights are published: {policy: version}. A repeated call
        does nothing."""
        if versions == self._versions:
            return
        self._batch = {}
        self._versions = dict(versions)
        self._num_learned += 1
        self._lineage.published(self._num_learned, versions)

    def counts(self) -> StreamCounts:
        self._counts.waiting = len(self._queue)
        self._counts.permits_free = self.permits_free
        return self._counts

    @property
    def permits_free(self) -> int:
        """How many games may start now. Computed from the current state, so a lost game never costs a permit."""
        wanted = (self._config.max_lag + 1) * self._config.games_per_version
        planned = len(self._batch) + self._queue.num_uses + self._config.reuse * len(self._out)
        return max(0, (wanted - planned) // self._config.reuse)

    @property
    def oldest_s(self) -> float:
        return self._queue.oldest_s

    def _has_enough(self) -> bool:
        """Whether a version's games wait, in whole groups, unless no game can come that completes one."""
        wanted, waiting = self._config.games_per_version, self._queue.numbers
        if self._words.games_per_word > 1 and (self._out or self.permits_free):
            waiting = [number for number in waiting if self._is_of_whole_group(number)]
        return len(waiting) >= wanted

    def _is_of_whole_group(self, number: int) -> bool:
        """Whether all games of a game's group were played, and none of them was too old, or trained on for the last
        time."""
        size = self._words.games_per_word
        group = range(first := number // size * size, first + size)
        return all(each in self._seen and each not in self._finished_with for each in group)

    def _task(self, lease: Lease) -> GameTask:
        seats = next((each for first, each in reversed(self._seats) if first <= lease.index), self._seats[0][1])
        attacker, defender = seats(lease.index)
        return GameTask(
            lease.index, lease.word, STAGE, seed=self._seed, attacker=attacker, defender=defender, game=lease.game
        )

    def _versions_of(self, game: Played) -> dict[str, int]:
        """The oldest versions that played, of the learning policies."""
        return {name: version for name, version in game.oldest_versions.items() if name in self._versions}

    def _lag(self, versions: Mapping[str, int]) -> int:
        """In versions of the stream: the same weights have another number after a resume."""
        found = (self._lineage.version_of(name, number) for name, number in versions.items())
        return self._num_learned - min(found, default=self._num_learned)

    def _is_stale(self, versions: Mapping[str, int]) -> bool:
        return self._lag(versions) > self._config.max_lag

    def _is_repeated(self, uses_left: int) -> bool:
        """Of a taken episode with so many uses left."""
        return uses_left < self._config.reuse - 1

    def _is_finished(self, number: int) -> bool:
        return number in self._finished_with and number not in self._batch


@dataclass
class Lineage:
    """Which version of the stream a published number is, so how old a game is: no number is used twice, so a run that
    resumes publishes the same weights again, under the next number (actors/league.py counts the versions of a whole run
    alike).

        version   0  1  2  3  4      there is a checkpoint of version 2, and the run ends at version 4
        number    1  2  3  4  5
        version         2  3  4      resumed: games of numbers 3 and 6 are of the same weights
        number          6  7  8      numbers 4 and 5 are of weights that were abandoned

    `starts`: [(version, {policy: its number})], one for each attempt: from there on both rise together."""

    starts: list[tuple[int, Mapping[str, int]]]

    @classmethod
    def from_cursor(cls, cursor: Mapping[str, Any]) -> Lineage:
        """Of a stream's cursor, with the numbers under which its version is published now."""
        version, numbers = cursor["num_learned"], cursor["versions"]
        lineage = cls([(first, before) for first, before in cursor.get("numbers") or [(version, numbers)]])
        lineage.published(version, numbers)
        return lineage

    def published(self, version: int, numbers: Mapping[str, int]) -> None:
        """These are the numbers of a version."""
        first, before = self.starts[-1]
        if any(number - before[policy] != version - first for policy, number in numbers.items()):
            self.starts.append((version, dict(numbers)))

    def version_of(self, policy: str, number: int) -> int:
        """An abandoned version counts as one that is as far behind the checkpoint as it was ahead of it: the difference
        to the learner's is then the number of updates between the weights of both.

        >>> lineage = Lineage([(0, {"policy": 1}), (2, {"policy": 6})])
        >>> [lineage.version_of("policy", number) for number in (1, 2, 3, 4, 5, 6, 7)]
        [0, 1, 2, 1, 0, 2, 3]
        """
        own = max((place for place, (_, begin) in enumerate(self.starts) if begin[policy] <= number), default=0)
        first, begin = self.starts[own]
        version = first + number - begin[policy]
        common = min([version, *(later for later, _ in self.starts[own + 1 :])])
        return common - (version - common)

"""Play that never waits for the learner, and a bound on how far it runs ahead.

    word stream --lease--> GameTask --> arena --> episode --> queue --take(version)--> learner

Every version of the weights learns from `games_per_version` episodes. Permits keep the games begun so far within what
the versions up to (current + max_lag) will take; so with max_lag 0 a version's games are all played by that version, as
in `rounds`, and nothing older than max_lag versions is handed out: what has become older is evicted, counted, and
played again. (The bound follows AReaL, arXiv 2505.24298, eq. 3; evicting is ours.)

What a stream knows is a function of the episode log and of a small cursor (`GameStream.cursor`): which episodes are
done with, and which batch is out. `GameStream.restore` makes it again from these.

Plain classes, no Ray; cluster/buffer.py hosts them.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from actors.arena import GameTask
from spag_ray.config import ReplayOrder, StreamConfig
from spag_ray.episode import Episode
from spag_ray.game import Role
from spag_ray.words import Lease, WordStream

STAGE = "stream"


class Numbers:
    """A set of game numbers, nearly all of them those from 0 up: kept as how many these are, and the others."""

    def __init__(self, below: int = 0, others: Iterable[int] = ()) -> None:
        self._below = below
        self._others = set(others)

    def add(self, number: int) -> None:
        if number >= self._below:
            self._others.add(number)
        while self._below in self._others:
            self._others.remove(self._below)
            self._below += 1

    def __contains__(self, number: int) -> bool:
        return number < self._below or number in self._others

    def __len__(self) -> int:
        return self._below + len(self._others)

    @property
    def end(self) -> int:
        """One more than the largest."""
        return max(self._others, default=self._below - 1) + 1

    def missing(self) -> list[int]:
        """Those below `end` that are not in it."""
        return [number for number in range(self._below, self.end) if number not in self._others]

    def as_json(self) -> list[Any]:
        return [self._below, sorted(self._others)]


class Permits:
    """How many games may be begun: (version + 1 + max_lag) * games_per_version in all, less what came to nothing."""

    def __init__(self, games_per_version: int, max_lag: int) -> None:
        self._games_per_version = games_per_version
        self._max_lag = max_lag
        self._version = 0
        self._begun = 0

    @property
    def free(self) -> int:
        return max(0, (self._version + 1 + self._max_lag) * self._games_per_version - self._begun)

    def take(self, count: int) -> int:
        """Up to `count` permits; how many there were."""
        granted = min(count, self.free)
        self._begun += granted
        return granted

    def count(self, begun: int) -> None:
        """Games that were begun without a permit of this life's."""
        self._begun += begun

    def resume(self, begun: int, version: int) -> None:
        """Of a stream that was there before."""
        self._begun, self._version = begun, version

    def give_back(self, count: int = 1) -> None:
        """Games that were lost or evicted: others may be begun for them."""
        self._begun -= count

    def advance(self, version: int) -> None:
        """`version` counts from 0, where the stream began."""
        self._version = version


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
        """How long the one that came first has waited; 0 if nothing waits."""
        return time.monotonic() - self._entries[0].came_at if self._entries else 0.0

    def add(
        self, number: int, data: bytes, versions: Mapping[str, int], priority: float, uses_left: int | None = None
    ) -> None:
        """`versions`: of each policy whose turns are learned, the oldest weights that sampled one."""
        self._entries.append(_Entry(number, data, versions, priority, self._reuse if uses_left is None else uses_left))

    def evict(self, is_stale: Callable[[Mapping[str, int]], bool]) -> tuple[list[int], int]:
        """Drop what is too old: the numbers of these, and how many of them had never been handed out."""
        stale = [entry for entry in self._entries if is_stale(entry.versions)]
        self._entries = [entry for entry in self._entries if not is_stale(entry.versions)]
        return [entry.number for entry in stale], sum(entry.uses_left == self._reuse for entry in stale)

    def uses_left(self) -> dict[int, int]:
        """{number: uses} of those that were handed out before and will be again."""
        return {entry.number: entry.uses_left for entry in self._entries if entry.uses_left < self._reuse}

    def take(self, count: int) -> list[_Entry]:
        """`count` different episodes, in the configured order: oldest first, newest first, or drawn with
        probabilities in proportion to their priorities (Efraimidis and Spirakis, 2006)."""
        places: Sequence[int] = range(len(self._entries))
        if self._order == "recent":
            places = places[::-1]
        elif self._order == "prioritized":
            keys = [self._random.random() ** (1.0 / max(entry.priority, 1e-3)) for entry in self._entries]
            places = sorted(places, key=lambda place: -keys[place])
        chosen = places[:count]
        taken = [self._entries[place] for place in chosen]
        for place in chosen:
            self._entries[place].uses_left -= 1
        self._entries = [entry for entry in self._entries if entry.uses_left]
        return taken


@dataclass
class StreamCounts:
    """Since the stream began. `lag`: episodes handed out, by how many versions old they were."""

    begun: int = 0
    finished: int = 0
    lost: int = 0
    repeated: int = 0
    evicted: int = 0
    handed_out: int = 0
    waiting: int = 0
    permits_free: int = 0
    lag: Counter[int] = field(default_factory=Counter)


class GameStream:
    """Words, permits and the queue between arenas and learner. `versions`: {policy that learns: the weights it starts
    with}; `seats` says which players sit down to game number n."""

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
        self._seats = seats
        self._permits = Permits(-(-config.games_per_version // config.reuse), config.max_lag)
        self._queue = ReplayQueue(config.replay, config.reuse, seed)
        self._out: dict[int, tuple[str, Lease]] = {}
        self._seen = Numbers()
        self._finished_with = Numbers()
        self._batch: dict[int, bytes] = {}
        self._versions = dict(versions)
        self._num_learned = 0
        self._win_rate = {role: 0.5 for role in Role}
        self._counts = StreamCounts()

    def cursor(self) -> dict[str, Any]:
        """What the log does not tell, as plain JSON."""
        return {
            "versions": self._versions,
            "num_learned": self._num_learned,
            "batch": list(self._batch),
            "finished_with": self._finished_with.as_json(),
            "uses_left": {str(number): uses for number, uses in self._queue.uses_left().items()},
            "counts": vars(self._counts) | {"lag": {str(lag): n for lag, n in self._counts.lag.items()}},
        }

    def restore(self, cursor: Mapping[str, Any] | None, records: Iterable[tuple[Episode, bytes]]) -> None:
        """Be what `cursor` and the log say; games that were under way are not known any more, and given out again.
        Without a cursor every episode of the log waits to be learned."""
        uses: dict[str, int] = {}
        batch: list[int] = []
        if cursor is not None:
            self._versions = dict(cursor["versions"])
            self._num_learned = cursor["num_learned"]
            self._finished_with = Numbers(*cursor["finished_with"])
            lag = Counter({int(lag): count for lag, count in cursor["counts"]["lag"].items()})
            self._counts = StreamCounts(**cursor["counts"] | {"lag": lag})
            uses, batch = cursor["uses_left"], cursor["batch"]
        self._batch = dict.fromkeys(batch, b"")
        for episode, data in records:
            number = episode.number
            if number in self._seen:
                continue
            self._seen.add(number)
            if number in self._batch:
                self._batch[number] = data
            if number not in self._finished_with and (number not in self._batch or str(number) in uses):
                left = uses.get(str(number))
                self._queue.add(number, data, self._oldest_versions(episode), self._priority(episode), left)
        self._words = self._words.resumed(self._seen.end, self._seen.missing())
        self._permits.resume(len(self._seen) - self._counts.evicted, self._num_learned)

    def lease(self, holder: str, count: int) -> list[GameTask]:
        """Up to `count` games to play, as many as there are permits for."""
        tasks = []
        for _ in range(self._permits.take(count)):
            lease = self._words.lease()
            self._out[lease.index] = (holder, lease)
            attacker, defender = self._seats(lease.index)
            tasks.append(GameTask(lease.index, lease.word, STAGE, self._seed, attacker, defender))
        self._counts.begun += len(tasks)
        return tasks

    def add(self, episode: Episode, data: bytes) -> bool:
        """A game has been played; False for one that came before. One whose lease is not known any more (its arena was
        given up, or the buffer has forgotten it) counts like any other if it comes first."""
        number = episode.number
        if number in self._seen:
            self._counts.repeated += 1
            return False
        self._seen.add(number)
        out = self._out.pop(number, None)
        if out is not None:
            self._words.done(out[1])
        else:
            self._words.played(number)
            self._permits.count(1)
        self._counts.finished += 1
        self._queue.add(number, data, self._oldest_versions(episode), self._priority(episode))
        return True

    def give_up(self, holder: str) -> int:
        """An arena is gone: its games are played by others. Returns how many."""
        lost = [number for number, (who, _) in self._out.items() if who == holder]
        for number in lost:
            self._words.give_back(self._out.pop(number)[1])
        self._permits.give_back(len(lost))
        self._counts.lost += len(lost)
        return len(lost)

    def take(self) -> list[bytes] | None:
        """The episodes of one version, or None while there are too few that are new enough; asked again before
        `advance`, the same episodes."""
        if self._batch:
            return list(self._batch.values())
        stale, never_used = self._queue.evict(self._is_stale)
        for number in stale:
            self._finished_with.add(number)
        self._permits.give_back(never_used)
        self._counts.evicted += never_used
        if len(self._queue) < self._config.games_per_version:
            return None
        taken = self._queue.take(self._config.games_per_version)
        self._counts.handed_out += len(taken)
        for entry in taken:
            self._counts.lag[self._lag(entry.versions)] += 1
            if not entry.uses_left:
                self._finished_with.add(entry.number)
        self._batch = {entry.number: entry.data for entry in taken}
        return list(self._batch.values())

    def advance(self, versions: Mapping[str, int]) -> None:
        """The games that were taken have been learned, and new weights published: {policy: version}. Said again,
        nothing happens: a version is published once."""
        if versions == self._versions:
            return
        self._batch = {}
        self._versions = dict(versions)
        self._num_learned += 1
        self._permits.advance(self._num_learned)

    def counts(self) -> StreamCounts:
        self._counts.waiting = len(self._queue)
        self._counts.permits_free = self._permits.free
        return self._counts

    @property
    def oldest_s(self) -> float:
        return self._queue.oldest_s

    def _oldest_versions(self, episode: Episode) -> dict[str, int]:
        oldest: dict[str, int] = {}
        for turn in episode.turns:
            if turn.policy in self._versions:
                oldest[turn.policy] = min(oldest.get(turn.policy, turn.first_version), turn.first_version)
        return oldest

    def _lag(self, versions: Mapping[str, int]) -> int:
        return max((self._versions[name] - version for name, version in versions.items()), default=0)

    def _is_stale(self, versions: Mapping[str, int]) -> bool:
        return self._lag(versions) > self._config.max_lag

    def _priority(self, episode: Episode) -> float:
        """How far the result is from what its winner's seat usually gets: the size of its advantage; 0 if undecided."""
        winner = episode.verdict.outcome.winner
        if winner is None:
            return 0.0
        surprise = 1.0 - self._win_rate[winner]
        for role in Role:
            self._win_rate[role] += 0.02 * ((role is winner) - self._win_rate[role])
        return surprise

"""A stream against a model of it: whatever happens, it never deadlocks, and no use of an episode is lost or doubled."""

import copy
import json
from collections import Counter
from itertools import takewhile
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from actors.arena import GameTask
from cluster.buffer.log_mark import LogMark
from cluster.buffer.stream import GameStream, Leases
from spag_ray.config.parts import StreamConfig
from spag_ray.episodes.log import LogPlace
from spag_ray.episodes.wire import encode
from tests.support.streams import finish, numbers, played, records, spec, stream_of


class StreamMachine(RuleBasedStateMachine):
    """Two arenas play. `left`: {game: uses} that wait; `uses`: {game: how often it was learned}. Both are of the
    versions that were not lost with a learner. `size`: games_per_word."""

    @initialize(
        reuse=st.integers(1, 3), max_lag=st.integers(0, 3), num_groups=st.integers(1, 5), size=st.integers(1, 3)
    )
    def begin(self, reuse: int, max_lag: int, num_groups: int, size: int) -> None:
        self.size = size
        self.config = StreamConfig(games_per_version=num_groups * size, max_lag=max(max_lag, reuse - 1), reuse=reuse)
        self.stream = self.made()
        self.log: list[bytes] = []
        self.stage_progress: dict[int, tuple[GameTask, int]] = {}
        self.holders: dict[int, str] = {}
        self.lives = [1, 1]
        self.versions: dict[int, int] = {}  # of the games in the log
        self.left: dict[int, int] = {}
        self.uses: Counter[int] = Counter()
        self.batch: list[int] = []
        self.published = 0
        self.updates: dict[int, tuple[int, ...]] = {0: ()}  # that made the weights of each published number
        self.write_cursor()
        self.write_checkpoint()

    def made(self) -> GameStream:
        plan = spec(self.config, self.size)
        return GameStream(plan.words, plan.config, plan.versions, plan.seed)

    def write_cursor(self) -> None:
        self.cursor = json.dumps(self.stream.cursor())
        self.evicted: dict[int, int] = {}  # since then

    def write_checkpoint(self) -> None:
        self.checkpoint = self.cursor, dict(self.left), self.uses.copy(), len(self.log)
        self.saved = self.updates[self.published]

    def age(self, number: int) -> int:
        """How many updates lie between the weights that played a game and the learner's."""
        path, now = self.updates[self.versions[number]], self.updates[self.published]
        shared = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(path, now, strict=False)))
        return len(path) + len(now) - 2 * shared

    def restore(self, leases: Leases | None, is_whole: bool) -> None:
        """From the whole log, or from the cursor's mark on. A record takes one byte in this log."""
        cursor = json.loads(self.cursor)
        mark = None if is_whole else LogMark.from_cursor(cursor)
        begin = mark.place.offset if mark is not None else 0
        self.stream = self.made()
        self.stream.restore(cursor, records(self.log[begin:]), leases, mark)
        places = {number: LogPlace(0, begin + n) for n, number in enumerate(numbers(self.log[begin:]))}
        self.stream.written(places, LogPlace(0, len(self.log)), 7)

    def arena(self, index: int) -> str:
        return f"arena-{index}.{self.lives[index]}"

    @rule(count=st.integers(1, 9), index=st.integers(0, 1))
    def lease(self, count: int, index: int) -> None:
        tasks = self.stream.lease(self.arena(index), count)
        for task in tasks:
            assert task.number not in self.stage_progress, "given out twice"
            assert task.number not in self.versions, "given out twice"
            self.stage_progress[task.number] = task, self.published
            self.holders[task.number] = self.arena(index)
        bound = (self.config.max_lag + 1) * self.config.games_per_version
        planned = len(self.batch) + sum(self.left.values()) + self.config.reuse * len(self.stage_progress)
        assert planned <= bound or not tasks, "play is bounded, in uses"

    @precondition(lambda self: self.stage_progress)
    @rule(data=st.data())
    def add(self, data: Any) -> None:
        number = data.draw(st.sampled_from(sorted(self.stage_progress)))
        task, began = self.stage_progress.pop(number)
        assert finish(self.stream, task, began)
        assert not finish(self.stream, task, began)
        self.stream.written({number: LogPlace(0, len(self.log))}, LogPlace(0, len(self.log) + 1), 7)
        self.log.append(encode(played(task, began)))
        self.versions[number], self.left[number] = began, self.config.reuse

    @rule()
    def take(self) -> None:
        batch = self.stream.take()
        if self.batch:
            assert numbers(batch) == self.batch, "asked again, the same"
            return
        lag = self.config.max_lag
        stale = [number for number in self.left if self.age(number) > lag]
        self.evicted |= {number: self.left.pop(number) for number in stale}
        too_few = len(self.left) < self.config.games_per_version
        assert (batch is None) == too_few if self.size == 1 else batch is None or not too_few
        if batch is None:
            return
        self.batch = numbers(batch)
        if self.stage_progress:
            groups = {number // self.size for number in self.batch}
            assert not groups & {number // self.size for number in self.stage_progress}, "it waits for whole groups"
        assert len(set(self.batch)) == self.config.games_per_version
        for number in self.batch:
            self.uses[number] += 1
            self.left[number] -= 1
        self.left = {number: uses for number, uses in self.left.items() if uses}
        self.write_cursor()

    @precondition(lambda self: self.batch)
    @rule()
    def advance(self) -> None:
        self.updates[self.published + 1] = (*self.updates[self.published], self.published)
        self.published += 1
        self.batch = []
        self.stream.advance({"policy": self.published})
        self.stream.advance({"policy": self.published})
        self.write_cursor()

    @precondition(lambda self: not self.batch)
    @rule()
    def keep(self) -> None:
        self.write_cursor()
        self.write_checkpoint()

    @rule(index=st.integers(0, 1))
    def arena_dies(self, index: int) -> None:
        lost = [number for number in self.stage_progress if self.holders[number] == self.arena(index)]
        assert self.stream.give_up(self.arena(index)) == len(lost)
        assert self.stream.lease(self.arena(index), 1) == [], "an arena that is gone gets no more games"
        for number in lost:
            del self.stage_progress[number]
        self.lives[index] += 1

    @rule(is_whole=st.booleans())
    def buffer_restarts(self, is_whole: bool) -> None:
        self.restore(self.stream.leases(), is_whole)
        self.left |= self.evicted

    @rule(lost=st.integers(0, 2), is_whole=st.booleans())
    def learner_resumes(self, lost: int, is_whole: bool) -> None:
        """From its checkpoint; its next version is above all that were ever published. Games played meanwhile stay."""
        cursor, left, uses, num_logged = self.checkpoint
        self.published += 1 + lost
        self.updates[self.published] = self.saved
        known = json.loads(self.cursor)["numbers"]  # also those of attempts that wrote no checkpoint
        self.cursor = json.dumps({**json.loads(cursor), "versions": {"policy": self.published}, "numbers": known})
        self.restore(None, is_whole)
        self.stage_progress, self.batch, self.evicted = {}, [], {}
        since = [each for _, data in records(self.log[num_logged:]) for each in numbers([data])]
        self.left, self.uses = left | dict.fromkeys(since, self.config.reuse), uses.copy()
        self.write_cursor()

    @invariant()
    def no_use_is_lost_or_doubled(self) -> None:
        assert self.stream.counts().waiting == len(self.left)
        assert max(self.uses.values(), default=0) <= self.config.reuse

    @invariant()
    def it_goes_on(self) -> None:
        """Once the games that may be played have been played there is a batch."""
        stream = copy.deepcopy(self.stream)
        for task, began in self.stage_progress.values():
            finish(stream, task, began)
        for _ in range(2):  # what is too old is evicted, and others are played
            stream.take()
            for task in stream.lease("another", 1000):
                finish(stream, task, self.published)
        counts = stream.counts()
        assert stream.take() is not None, f"waiting {counts.waiting}, permits {counts.permits_free}"


TestStreamModel = StreamMachine.TestCase
TestStreamModel.settings = settings(
    max_examples=100, stateful_step_count=40, suppress_health_check=[HealthCheck.too_slow]
)


def test_a_stream_of_reused_episodes_goes_on_after_a_resume() -> None:
    """A learner that lost its versions comes back with one above all that were published: what waits is too old."""
    config = {"games_per_version": 8, "max_lag": 1, "reuse": 2}
    stream, log, cursor = stream_of(**config), list[bytes](), ""
    for version in range(3):
        for task in stream.lease("arena", 100):
            finish(stream, task, version)
            log.append(encode(played(task, version)))
        assert stream.take() is not None
        stream.advance({"policy": version + 1})
        cursor = json.dumps(stream.cursor())
    again = stream_of(**config)
    again.restore({**json.loads(cursor), "versions": {"policy": 6}}, records(log))
    assert again.take() is None, "all are too old"
    for task in again.lease("arena", 100):
        finish(again, task, 6)
    assert again.take() is not None, f"waiting {again.counts().waiting} of 8, permits {again.counts().permits_free}"

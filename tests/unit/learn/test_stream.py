"""Permits, staleness, order and reuse of a stream; what becomes of the games of an arena that died."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.arena import GameTask
from actors.league import Opponents
from cluster.buffer.buffer_actor import BufferActor, LeaseLog, StreamSpec
from cluster.buffer.replay_buffer import ReplayBuffer
from cluster.buffer.stream import GameStream, Leases, Lineage
from cluster.launch.placed_run import stream_hint
from spag_ray.config.loading import parse_config
from spag_ray.config.parts import StreamConfig
from spag_ray.episodes.log import EpisodeLog, LogPlace, read_log, read_records_from
from spag_ray.episodes.wire import decode, encode, read_head
from spag_ray.errors import ConfigError, RunFolderError
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.turn import Turn
from spag_ray.game.words import WordsOfGame, WordStream
from tests.support.streams import WORDS, finish, numbers, played, records, spec, stream_of, taboo_words


def test_with_lag_0_a_version_plays_its_own_games_and_waits_for_the_next() -> None:
    stream = stream_of(games_per_version=4, max_lag=0)
    for version in range(3):
        tasks = stream.lease("arena", 10)
        assert len(tasks) == 4
        assert stream.lease("arena", 1) == []
        assert stream.take() is None
        for task in tasks:
            assert finish(stream, task, version)
        assert len(numbers(stream.take())) == 4
        assert stream.lease("arena", 1) == []
        stream.advance({"policy": version + 1})
    assert stream.counts().lag == Counter({0: 12})
    assert stream.counts().evicted == 0


def test_a_version_waits_for_whole_groups_of_games_about_one_word() -> None:
    stream = stream_of(games_per_word=2, games_per_version=4, max_lag=1)
    tasks = stream.lease("arena", 8)
    assert [task.scenario for task in tasks[::2]] == [task.scenario for task in tasks[1::2]]
    for number in (7, 0, 2, 4, 5, 3):
        assert stream.take() is None, "groups 2 and 1 are the first whole ones"
        finish(stream, tasks[number])
    assert numbers(stream.take()) == [2, 3, 4, 5], "group 1 came first, and the single games wait for theirs"
    stream.advance({"policy": 1})
    finish(stream, tasks[6])
    finish(stream, tasks[1])
    assert sorted(numbers(stream.take())) == [0, 1, 6, 7]


def test_a_group_of_which_a_game_was_too_old_is_not_whole_and_breaks_no_other() -> None:
    stream = stream_of(games_per_word=2, games_per_version=4, max_lag=1)
    tasks = {task.number: task for task in stream.lease("arena", 8)}
    for version, taken in enumerate(([2, 3, 4, 5], [6, 7, 8, 9])):
        for number in taken:
            finish(stream, tasks[number], version)
        assert numbers(stream.take()) == taken
        stream.advance({"policy": version + 1})
        tasks |= {task.number: task for task in stream.lease("arena", 4)}
    finish(stream, tasks[0], 0)
    for number in (1, 10, 11, 12):
        finish(stream, tasks[number], 2)
        assert stream.take() is None
    finish(stream, tasks[13], 2)
    assert numbers(stream.take()) == [10, 11, 12, 13], "game 1 waits: its group is not whole"
    assert stream.counts().evicted == 1


def test_groups_stay_whole_where_games_are_trained_on_twice() -> None:
    stream = stream_of(games_per_word=2, games_per_version=4, max_lag=2, reuse=2)
    taken = Counter[int]()
    for version in range(6):
        for task in stream.lease("arena", 12):
            finish(stream, task, version)
        found = numbers(stream.take())
        taken.update(found)
        assert Counter(number // 2 for number in found) == dict.fromkeys({number // 2 for number in found}, 2), found
        stream.advance({"policy": version + 1})
    assert max(taken.values()) == 2


def test_a_version_takes_parts_of_groups_where_no_game_can_come_that_completes_one() -> None:
    stream = stream_of(games_per_word=2, games_per_version=2, max_lag=0)
    first, second = stream.lease("arena", 2)
    stream.give_up("arena")
    finish(stream, first)
    finish(stream, second)
    assert numbers(stream.take()) == [0, 1]
    stream.advance({"policy": 1})
    games = [played(GameTask(number, "river", "stream"), 1) for number in (2, 5)]
    again = stream_of(games_per_word=2, games_per_version=2, max_lag=0)
    again.restore({**stream.cursor(), "log": None}, records([encode(each) for each in games]))
    assert again.permits_free == 0
    assert numbers(again.take()) == [2, 5]


def test_a_sample_counts_what_came_and_not_what_the_log_held(tmp_path: Path) -> None:
    config = {"games_per_version": 2, "max_lag": 1}
    buffer, stream = ReplayBuffer(str(tmp_path)), stream_of(**config)
    buffer.open_stream(stream, None)
    assert buffer.sample().waiting == 0
    assert buffer.sample().oldest_s == 0
    records = [encode(played(task)) for task in stream.lease("arena", 4)]
    buffer.add([*records[:3], records[0]])
    buffer.add([encode(played(GameTask(0, "river", "eval-base", 0)))])
    time.sleep(0.02)
    sample = buffer.sample()
    assert sample.waiting == 4
    assert 0.02 <= sample.oldest_s < 10
    assert sample.stream is not None
    assert (sample.stream.permits_free, sample.stream.repeated) == (0, 1)
    counts = {phase: count.num_games for (phase, _), count in sample.played.items()}
    assert counts == {"self_play": 3, "evaluation": 1}
    assert sample.played["self_play", "taboo"].num_tokens == 6
    buffer.take("eval-base")
    assert buffer.sample().waiting == 3

    again = ReplayBuffer(str(tmp_path))
    again.open_stream(stream_of(**config), None)
    assert again.sample().waiting == 3
    assert again.sample().played == {}


@settings(max_examples=60)
@given(
    st.integers(0, 3),
    st.integers(1, 5),
    st.sampled_from(["fifo", "recent", "prioritized"]),
    st.randoms(use_true_random=False),
)
def test_nothing_too_old_is_handed_out_and_play_is_bounded_whatever_happens(
    max_lag: int, per_version: int, order: str, random: Any
) -> None:
    stream = stream_of(games_per_version=per_version, max_lag=max_lag, replay=order)
    version, stage_progress, taken, most, lives = 0, [], Counter[int](), 0, 1
    for _ in range(300):
        action = random.choice(["lease", "finish", "finish", "learn", "die"])
        if action == "lease":
            stage_progress += [(task, version) for task in stream.lease(f"arena.{lives}", random.randint(1, 9))]
        elif action == "finish" and stage_progress:
            task, began = stage_progress.pop(random.randrange(len(stage_progress)))
            assert finish(stream, task, began), "one game counts once"
            assert not finish(stream, task, began), "one game counts once"
        elif action == "die" and random.random() < 0.1:
            assert stream.give_up(f"arena.{lives}") == len(stage_progress)
            stage_progress, lives = [], lives + 1
        elif action == "learn" and (batch := stream.take()) is not None:
            for data in batch:
                episode = decode(data)
                taken[episode.number] += 1
                assert version - episode.turns[0].first_version <= max_lag
            version += 1
            stream.advance({"policy": version})
        counts = stream.counts()
        most = max(most, len(stage_progress) + counts.waiting)
    assert most <= (max_lag + 1) * per_version
    assert set(taken.values()) <= {1}
    assert max(stream.counts().lag, default=0) <= max_lag


def test_a_game_that_became_too_old_is_evicted_counted_and_played_again() -> None:
    stream = stream_of(games_per_version=2, max_lag=1)
    tasks = stream.lease("arena", 9)
    assert len(tasks) == 4
    slow = tasks.pop()
    for version in range(2):
        for task in tasks[:2] if version == 0 else [*tasks[2:], *stream.lease("arena", 1)]:
            finish(stream, task, version)
        assert stream.take() is not None
        stream.advance({"policy": version + 1})
    free = stream.counts().permits_free
    finish(stream, slow, 0)
    assert stream.take() is None
    assert stream.counts().evicted == 1
    assert stream.counts().permits_free == free + 1


@pytest.mark.parametrize("versions", [[(0, 2)], [(0, 0), (2, 2)], [(2, 2), (0, 2)]], ids=str)
def test_a_game_is_as_old_as_the_oldest_weights_that_began_one_of_its_turns(versions: list[tuple[int, int]]) -> None:
    """`versions`: of the first and the last token of each turn. New weights during a game make it no newer."""
    stream = stream_of(games_per_version=1, max_lag=1)
    for number in (1, 2):
        stream.advance({"policy": number})
    (task,) = stream.lease("arena", 1)
    turns = tuple(
        Turn(role, "a", (1,), (2, 3), (-0.5, -0.5), "policy", first, last)
        for role, (first, last) in zip(Role, versions, strict=False)
    )
    record = encode(replace(played(task), turns=turns))
    assert read_head(record).oldest_versions == decode(record).oldest_versions == {"policy": 0}
    stream.add(read_head(record), record)
    assert stream.take() is None
    assert stream.counts().evicted == 1


def test_of_two_policies_that_learn_the_older_weights_decide_how_old_a_game_is() -> None:
    config = StreamConfig(games_per_version=1, max_lag=1)
    for newest, is_stale in ((1, False), (2, True)):
        stream = GameStream(taboo_words(WORDS, 0), config, {"policy": 0, "another": 0}, 0)
        (task,) = stream.lease("arena", 1)
        finish(stream, task, newest)  # `another` is of version 0 in it
        for number in range(1, newest + 1):
            stream.advance({"policy": number, "another": number})
        assert (stream.take() is None) == is_stale
        assert stream.counts().lag == ({} if is_stale else {1: 1})


def test_a_version_that_is_announced_twice_is_trained_on_once() -> None:
    stream = stream_of(games_per_version=2, max_lag=1)
    for task in stream.lease("arena", 4):
        finish(stream, task)
    assert numbers(stream.take()) == [0, 1]
    for _ in range(2):
        stream.advance({"policy": 1})
        assert numbers(stream.take()) == [2, 3], "the answer to the first call was lost, and the batch is handed out"
    assert stream.cursor()["num_learned"] == 1


def test_the_players_of_a_game_are_those_of_its_number() -> None:
    def seats(number: int) -> tuple[str, str]:
        return f"attacker {number}", f"defender {number}"

    stream = GameStream(taboo_words(WORDS, 0), StreamConfig(games_per_version=2), {"policy": 0}, 7, seats)
    tasks = stream.lease("arena", 3)
    assert [(task.attacker, task.defender) for task in tasks] == [seats(number) for number in range(3)]
    assert {task.seed for task in tasks} == {7}


@pytest.mark.parametrize("is_restored", [False, True])
def test_new_opponents_begin_with_a_pair_of_games_also_after_a_restart(is_restored: bool) -> None:
    stream, log = stream_of(games_per_version=8), []
    for task in stream.lease("arena", 3)[:2]:
        finish(stream, task)
        log.append(encode(played(task)))
    if is_restored:
        again = stream_of(games_per_version=8)
        again.restore(json.loads(json.dumps(stream.cursor())), records(log), stream.leases())
        stream = again
    stream.meet(lambda number: ("attacker", f"new {number}"))
    assert [task.defender for task in stream.lease("arena", 2)] == ["defender", "new 4"], "2 and 3 are a pair"


def test_every_word_is_played_equally_often_also_when_arenas_die() -> None:
    stream = stream_of(games_per_version=5, max_lag=3)
    words: Counter[str] = Counter()
    for version in range(20):
        lost = stream.lease(f"dead.{version}", 3)
        assert stream.give_up(f"dead.{version}") == 3
        again = stream.lease("arena", 100)
        assert [task.number for task in again[:3]] == [task.number for task in lost], "its words come first"
        for task in again:
            words[task.scenario] += 1
            finish(stream, task, version)
        assert stream.take() is not None
        stream.advance({"policy": version + 1})
    assert max(words.values()) - min(words.values()) <= 1
    late = lost[0]
    assert not finish(stream, late, 0), "the dead arena's own game came after all: it counts once"
    assert stream.counts().repeated == 1


@settings(max_examples=60)
@given(st.integers(0, 2), st.integers(1, 4), st.integers(1, 2), st.randoms(use_true_random=False))
def test_a_stream_is_what_its_log_and_its_cursor_say(max_lag: int, per_version: int, reuse: int, random: Any) -> None:
    """It is made anew again and again, from the log as it is then and the cursor as it was last written; a learner that
    lost versions goes back to an older cursor. Nothing is lost, nothing is trained on more often than configured."""
    reuse = min(reuse, max_lag + 1)
    config = StreamConfig(games_per_version=per_version, max_lag=max_lag, reuse=reuse)
    log: list[bytes] = []
    stream = GameStream(taboo_words(WORDS, 0), config, {"policy": 0}, 0)
    cursor, kept = stream.cursor(), (stream.cursor(), Counter[int](), 0)
    version, stage_progress, uses = 0, list[tuple[GameTask, int]](), Counter[int]()
    published = 0
    for _ in range(200):
        action = random.choice(["lease", "finish", "finish", "learn", "keep", "crash", "go back"])
        if action == "lease":
            stage_progress += [(task, published) for task in stream.lease("arena", random.randint(1, 6))]
        elif action == "finish" and stage_progress:
            task, began = stage_progress.pop(random.randrange(len(stage_progress)))
            episode = played(task, began)
            if stream.add(episode, encode(episode)):
                log.append(encode(episode))
        elif action == "learn" and (batch := stream.take()) is not None:
            cursor = stream.cursor()
            if random.random() < 0.3:  # the buffer dies while the learner has the batch
                stream = GameStream(taboo_words(WORDS, 0), config, {"policy": 0}, 0)
                stream.restore(json.loads(json.dumps(cursor)), records(log))
                assert sorted(stream.take() or []) == sorted(batch), "asked again, the same"
            assert stream.repeated() == {number for number in numbers(batch) if uses[number]}
            uses.update(numbers(batch))
            version, published = version + 1, published + 1
            stream.advance({"policy": published})
            stream.advance({"policy": published})
            cursor = stream.cursor()
        elif action == "keep":
            kept = (cursor, uses.copy(), version)
        elif action in ("crash", "go back") and random.random() < 0.3:
            if action == "go back":
                cursor, uses, version = kept[0], kept[1].copy(), kept[2]
                published += 1
                cursor = {**cursor, "versions": {"policy": published}}
            stream = GameStream(taboo_words(WORDS, 0), config, {"policy": 0}, 0)
            stream.restore(json.loads(json.dumps(cursor)), records(log))
        assert max(uses.values(), default=0) <= reuse
    seen = sorted(decode(data).number for data in log)
    assert len(seen) == len(set(seen)), "a game is in the log once"
    stream = GameStream(taboo_words(WORDS, 0), config, {"policy": 0}, 0)
    stream.restore(cursor, records(log))
    for number in sorted(set(range(seen[-1] + 1 if seen else 0)) - set(seen)):
        assert stream.lease("arena", 1)[0].number == number if stream.counts().permits_free else True


@pytest.mark.parametrize("max_lag", [0, 1])
def test_a_resume_makes_no_waiting_game_older(max_lag: int) -> None:
    """The same weights are published under the next number: with max_lag 0 all games that waited were dropped once."""
    stream = stream_of(games_per_version=4, max_lag=max_lag)
    for task in stream.lease("arena", 4):
        finish(stream, task, 0)
    assert stream.take()
    stream.advance({"policy": 1})
    log = [encode(played(task, 1)) for task in stream.lease("arena", 4)]
    for published in (2, 3):
        again = stream_of(games_per_version=4, max_lag=max_lag)
        again.restore(json.loads(json.dumps({**stream.cursor(), "versions": {"policy": published}})), records(log))
        assert numbers(again.take()) == [decode(data).number for data in log]
        assert (again.counts().evicted, again.counts().lag) == (0, {0: 8})
        again.advance({"policy": published + 1})
        assert again.cursor()["numbers"][1:] == [(1, {"policy": published})], "and they rise together from there"
        stream = again if published == 3 else stream


async def test_games_of_an_abandoned_version_are_as_old_as_updates_lie_between(tmp_path: Path) -> None:
    """The checkpoint is of version 0. Two attempts end without another one, after versions 3 and 1: what numbers they
    had stands beside the games."""
    config = StreamConfig(max_lag=2)

    async def attempt(first_number: int, num_versions: int) -> GameStream:
        buffer = BufferActor(str(tmp_path))
        await buffer.open_stream(replace(spec(config), versions={"policy": first_number}), None)
        for number in range(first_number, first_number + num_versions):
            await buffer.advance({"policy": number + 1})
        await buffer.close_stream()
        return buffer._stream

    await attempt(0, 3)  # numbers 0 to 3
    await attempt(4, 1)  # number 4 is version 0 again, and 5 is version 1
    stream = await attempt(6, 0)
    ages = {number: stream._lag({"policy": number}) for number in range(8)}
    assert ages == {0: 0, 1: 1, 2: 2, 3: 3, 4: 0, 5: 1, 6: 0, 7: -1}
    stream.advance({"policy": 7})
    assert {number: stream._lag({"policy": number}) for number in range(8)} == {
        number: age + 1 for number, age in ages.items()
    }


def test_orders() -> None:
    orders = {}
    for order in ("fifo", "recent", "prioritized"):
        stream = stream_of(games_per_version=20, max_lag=4, replay=order)
        for task in stream.lease("arena", 100):
            outcome = Outcome.DEFENDER_WINS if task.number % 10 == 0 else Outcome.ATTACKER_WINS
            finish(stream, task, outcome=Outcome.TIED if task.number % 2 else outcome)
        orders[order] = numbers(stream.take())
    assert orders["fifo"] == list(range(20))
    assert orders["recent"] == list(range(99, 79, -1))
    assert len(set(orders["prioritized"])) == 20
    drawn = Counter("tie" if number % 2 else "decided" for number in orders["prioritized"])
    assert drawn["decided"] == 20, "ties have no advantage"
    rare = [number for number in orders["prioritized"] if number % 10 == 0]
    assert len(rare) >= 6, "of 10 rare wins among 50 decided games more than their share come first"


def test_episodes_are_learned_as_often_as_configured_and_less_is_played() -> None:
    stream = stream_of(games_per_version=4, max_lag=1, reuse=2)
    uses: Counter[int] = Counter()
    begun = 0
    for version in range(12):
        tasks = stream.lease("arena", 100)
        begun += len(tasks)
        for task in tasks:
            finish(stream, task, version)
        taken = numbers(stream.take())
        assert stream.repeated() == {number for number in taken if uses[number]}
        uses.update(taken)
        stream.advance({"policy": version + 1})
    assert set(uses.values()) <= {1, 2}
    assert begun <= 2 * 12 + 4
    assert sum(count == 2 for count in uses.values()) >= 20


def test_a_batch_of_which_the_log_has_lost_an_episode_is_handed_out_without_it() -> None:
    stream = stream_of(games_per_version=3, max_lag=0)
    log = [encode(played(task)) for task in stream.lease("arena", 3)]
    for episode, data in records(log):
        stream.add(episode, data)
    assert stream.take() == log
    again = stream_of(games_per_version=3, max_lag=0)
    again.restore(stream.cursor(), records([log[0], log[2]]))
    assert again.take() == [log[0], log[2]]


def test_a_restored_stream_counts_on() -> None:
    stream = stream_of(games_per_version=2, max_lag=1)
    log = []
    for task in stream.lease("arena", 4):
        finish(stream, task)
        log.append(encode(played(task)))
    for version in (1, 2, 3):
        stream.take()
        stream.advance({"policy": version})
    assert stream.give_up("arena") == 0 == stream.give_up("arena.2")
    stream.lease("dead", 2)
    assert stream.give_up("dead") == 2
    counts = stream.counts()
    assert (counts.begun, counts.finished, counts.handed_out, counts.lost) == (6, 4, 4, 2)
    assert counts.lag == {0: 2, 1: 2}
    again = stream_of(games_per_version=2, max_lag=1)
    again.restore(json.loads(json.dumps(stream.cursor())), records(log))
    assert again.counts() == counts


def test_the_games_of_a_dead_arena_are_its_own_alone() -> None:
    stream = stream_of(games_per_version=8, max_lag=0)
    for holder in ("arena-1", "arena-1.2", "arena-10"):
        stream.lease(holder, 2)
    assert stream.give_up("arena-1") == 2
    assert [task.number for task in stream.lease("arena-2", 4)] == [0, 1, 6, 7]


def test_a_stream_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="set max_lag to at least 2"):
        parse_config({"stream": {"reuse": 3, "max_lag": 1}})
    with pytest.raises(ConfigError, match=r"multiple of stream\.games_per_version"):
        parse_config({"schedule": "stream", "self_play": {"games_per_round": 50}})
    with pytest.raises(ConfigError, match="remove one of them"):
        parse_config({"schedule": "stream", "placement": "colocated"})


async def opened(folder: Path, games_per_version: int) -> BufferActor:
    buffer = BufferActor(str(folder))
    await buffer.open_stream(spec(StreamConfig(games_per_version=games_per_version, max_lag=0)))
    return buffer


async def test_arenas_wait_for_permits_and_the_learner_for_episodes(tmp_path: Path) -> None:
    buffer = await opened(tmp_path, 2)
    tasks = await buffer.lease("arena", 8)
    waiting = asyncio.create_task(buffer.lease("arena", 8))
    assert len(tasks) == 2
    assert await buffer.batch(0.01) is None
    learning = asyncio.create_task(buffer.batch(5))
    await buffer.add([encode(played(tasks[0]))])
    await asyncio.sleep(0.01)
    assert not learning.done()
    await buffer.add([encode(played(tasks[1]))])
    assert len(await learning or []) == 2
    assert not waiting.done()
    await buffer.advance({"policy": 1})
    assert len(await waiting) == 2
    last = asyncio.create_task(buffer.lease("arena", 8))
    await buffer.close_stream()
    assert await last == []


async def test_episodes_during_a_write_are_written_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    syncs: list[str] = []
    monkeypatch.setattr("spag_ray.episodes.log._Unbuffered.sync", lambda file: syncs.append("sync"))

    buffer = await opened(tmp_path, 20)
    games = [encode(played(task)) for task in await buffer.lease("arena", 20)]
    assert await asyncio.gather(*(buffer.add([game]) for game in games)) == [1] * 20
    assert len(await buffer.batch(1) or []) == 20
    assert [episode.number for episode in read_log(tmp_path / "stream.log")] == list(range(20))
    assert len(syncs) <= 3


async def test_a_stage_is_taken_when_the_write_under_way_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Taking closes the log that a thread writes to."""
    append, may_end = EpisodeLog.append, threading.Event()

    def slow(log: EpisodeLog, *records: bytes) -> list[LogPlace]:
        assert may_end.wait(10)
        return append(log, *records)

    monkeypatch.setattr(EpisodeLog, "append", slow)
    buffer = BufferActor(str(tmp_path))
    adding = asyncio.create_task(buffer.add([encode(played(GameTask(0, "river", "spag-1")))]))
    await asyncio.sleep(0.05)
    taking = asyncio.create_task(buffer.take("spag-1"))
    await asyncio.sleep(0.05)
    assert not taking.done()
    may_end.set()
    assert await adding == len(await taking) == 1


async def test_what_a_full_disk_refused_is_written_next_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append, is_full = EpisodeLog.append, True

    def refuses(log: EpisodeLog, *records: bytes) -> list[LogPlace]:
        if is_full:
            raise OSError(28, "No space left on device")
        return append(log, *records)

    monkeypatch.setattr(EpisodeLog, "append", refuses)

    buffer = await opened(tmp_path, 8)
    games = [encode(played(task)) for task in await buffer.lease("arena", 8)]
    results = await asyncio.gather(*(buffer.add([game]) for game in games[:3]), return_exceptions=True)
    assert all(isinstance(each, RunFolderError) for each in results), "none of them is acknowledged"
    is_full = False
    assert await buffer.add(games[3:]) == 5
    assert sorted(episode.number for episode in read_log(tmp_path / "stream.log")) == list(range(8))


async def test_games_under_way_are_not_given_out_again_when_the_buffer_is_restarted(tmp_path: Path) -> None:
    buffer = await opened(tmp_path, 8)
    first, second = await buffer.lease("arena-0", 2), await buffer.lease("arena-1", 2)
    await buffer.add([encode(played(first[0]))])
    buffer = BufferActor(str(tmp_path))
    others = await buffer.lease("arena-0", 100)
    assert [task.number for task in others] == [4, 5, 6, 7], "those of the arenas are under way still"
    await buffer.add([encode(played(task)) for task in [first[1], *second, *others]])
    counts = await buffer.stream_counts()
    assert (counts.waiting, counts.repeated, counts.permits_free) == (8, 0, 0)


async def test_a_request_that_is_made_again_at_a_restarted_buffer_gets_the_same_games(tmp_path: Path) -> None:
    """Ray makes the call again when the buffer dies before its answer has arrived."""

    buffer = await opened(tmp_path, 4)
    lost = await buffer.lease("arena-0", 3, "a request")
    buffer = BufferActor(str(tmp_path))
    assert await buffer.lease("arena-0", 3, "a request") == lost
    assert [task.number for task in await buffer.lease("arena-0", 3, "another")] == [3]


async def test_an_arena_that_was_given_up_gets_no_more_games_also_from_a_restarted_buffer(tmp_path: Path) -> None:
    """Its last request may still wait for permits when it dies."""

    buffer = await opened(tmp_path, 2)
    tasks = await buffer.lease("arena-0", 2)
    waiting = asyncio.create_task(buffer.lease("arena-0", 2))
    await asyncio.sleep(0.01)
    assert await buffer.give_up("arena-0") == 2
    assert await asyncio.wait_for(waiting, 5) == []
    for _ in range(2):
        assert await buffer.lease("arena-0", 2) == []
        buffer = BufferActor(str(tmp_path))
    assert await buffer.lease("arena-0.2", 9) == tasks


async def test_games_of_a_stream_are_against_whom_the_league_drew_last_also_after_a_restart(tmp_path: Path) -> None:
    buffer = await opened(tmp_path, 100)
    before = await buffer.lease("arena-0", 11)
    for name in ("past-0", "past-1"):
        await buffer.meet(Opponents(0, ((name, 1.0),)))
    pair, *after = await buffer.lease("arena-0", 10)
    for task in (*before, pair):
        assert (task.attacker, task.defender) == ("attacker", "defender"), "the second of a pair is as the first"
    again = await BufferActor(str(tmp_path)).lease("arena-1", 10)
    for task in after + again:
        assert "past-1" in {task.attacker.partition("/")[0], task.defender.partition("/")[0]}


async def test_a_new_stream_knows_no_leases_of_the_one_before(tmp_path: Path) -> None:
    buffer = BufferActor(str(tmp_path))
    config = StreamConfig(games_per_version=2, max_lag=0)
    await buffer.open_stream(spec(config))
    tasks = await buffer.lease("arena-0", 2)
    await buffer.give_up("arena-1")
    await buffer.open_stream(spec(config), await buffer.advance({"policy": 0}))
    assert await buffer.lease("arena-1", 2) == tasks
    again = BufferActor(str(tmp_path))
    assert await again.give_up("arena-0") == 0
    assert await again.give_up("arena-1") == 2


def test_the_log_of_leases_stays_small(tmp_path: Path) -> None:
    leases = LeaseLog(tmp_path / "leases")
    leases.begin(Leases())
    leases.gone("arena-0")
    for number in range(3000):
        leases.leased("arena-0.2", f"request {number}", [number, 10_000 + number])
        leases.finished([number] if number < 100 else [number, 9_900 + number])
    assert len((tmp_path / "leases").read_text().splitlines()) <= 1300
    (tmp_path / "leases").write_text((tmp_path / "leases").read_text() + '{"gone": "arena-0.')
    found = LeaseLog(tmp_path / "leases").read()
    assert found.gone == {"arena-0"}
    assert set(range(12_900, 13_000)) <= set(found.out)


def test_the_log_of_leases_is_read_as_it_was_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    leases = LeaseLog(tmp_path / "leases")
    leases.begin(Leases({9: ("arena-2", "r")}, {"arena-3"}))
    leases.leased("arena-0", "first", [1, 2])
    leases.leased("arena-1", "second", [3])
    leases.gone("arena-0")
    wanted = Leases({9: ("arena-2", "r"), 3: ("arena-1", "second")}, {"arena-0", "arena-3"})
    assert LeaseLog(tmp_path / "leases").read() == wanted
    monkeypatch.setattr("cluster.buffer.buffer_actor.MAX_FINISHED_LINES", 0)
    leases.finished([9])
    assert len((tmp_path / "leases").read_text().splitlines()) == 3, "it was rewritten"
    assert LeaseLog(tmp_path / "leases").read() == Leases({3: ("arena-1", "second")}, wanted.gone)
    assert LeaseLog(tmp_path / "none").read() == Leases()


def test_lines_of_the_log_of_leases_that_are_torn_end_no_resume(tmp_path: Path) -> None:
    leases = LeaseLog(tmp_path / "leases")
    leases.begin(Leases())
    leases.leased("arena-0", "first", [1])
    with (tmp_path / "leases").open("ab") as file:  # a write that failed, and what a power cut leaves
        file.write(b'{"holder": "arena-1", "requ')
    leases.leased("arena-2", "second", [2])
    with (tmp_path / "leases").open("ab") as file:
        file.write(bytes(9) + b"\xff\n")
    leases.leased("arena-3", "third", [3])
    wanted = {1: ("arena-0", "first"), 2: ("arena-2", "second"), 3: ("arena-3", "third")}
    assert LeaseLog(tmp_path / "leases").read().out == wanted


def test_the_log_of_leases_is_rewritten_when_most_of_it_is_finished_and_only_then(tmp_path: Path) -> None:
    class Counting(LeaseLog):
        num_begun = 0

        def begin(self, leases: Leases) -> None:
            self.num_begun += 1
            super().begin(leases)

    leases = Counting(tmp_path / "leases")
    leases.begin(Leases(dict.fromkeys(range(600), ("arena", "r")), {f"gone {number}" for number in range(600)}))
    for number in range(600, 2700):
        leases.leased("arena", "r", [number])
        leases.finished([number - 600])
        if number % 50 == 0:
            assert len((tmp_path / "leases").read_text().splitlines()) <= 1000 + 600 + 600
    assert leases.num_begun == 3


async def test_what_the_learner_is_given_is_in_the_log_by_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    append = EpisodeLog.append

    def slow(log: EpisodeLog, *data: bytes) -> list[LogPlace]:
        time.sleep(0.2)
        return append(log, *data)

    monkeypatch.setattr(EpisodeLog, "append", slow)

    buffer = await opened(tmp_path, 2)
    adding = [asyncio.create_task(buffer.add([encode(played(task))])) for task in await buffer.lease("arena", 2)]
    batch = await buffer.batch(5)
    logged = [encode(episode) for episode in read_log(tmp_path / "stream.log")]
    assert batch is not None
    assert sorted(batch) == sorted(logged)
    again = BufferActor(str(tmp_path))  # as after a crash at this very moment
    assert sorted(await again.batch(5) or []) == sorted(batch)
    await asyncio.gather(*adding)


@pytest.mark.parametrize("call", ["open_stream", "restart", "played"])
async def test_a_reading_buffer_answers_heartbeats(call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the time limit of a heartbeat would have to allow for the longest log."""
    task = GameTask(0, WORDS[0], "stream" if call != "played" else "spag-1", 0)

    def slow(*arguments: Any) -> Iterator[tuple[LogPlace, bytes]]:
        time.sleep(1.0)
        return read_records_from(*arguments)

    config = spec(StreamConfig(games_per_version=2, max_lag=0))
    buffer = BufferActor(str(tmp_path))
    if call == "restart":
        await buffer.open_stream(config)
    await buffer.add([encode(played(task))])
    monkeypatch.setattr("cluster.buffer.replay_buffer.read_records_from", slow)
    buffer = BufferActor(str(tmp_path))
    calls: dict[str, Any] = {
        "open_stream": lambda: buffer.open_stream(config),
        "restart": buffer.stream_counts,
        "played": lambda: buffer.played("spag-1"),
    }
    began = time.monotonic()
    reading = asyncio.create_task(calls[call]())
    await asyncio.sleep(0.01)
    await buffer.heartbeat()
    assert time.monotonic() - began < 0.5, "the event loop runs"
    assert not reading.done()
    count = await buffer.count(task.stage)
    assert reading.done(), "other calls wait until the log is in memory"
    assert count.num_games == 1


def test_a_stream_whose_permits_starve_the_engines_says_what_to_change() -> None:
    small = {"schedule": "stream", "stream": {"games_per_version": 16}, "self_play": {"games_per_round": 160}}
    hint = stream_hint(parse_config(small))
    assert hint is not None
    assert "permits for 48 games are too few: 80 games keep" in hint
    assert stream_hint(parse_config(small | {"stream": {"games_per_version": 16, "max_lag": 4}})) is None
    reused = stream_hint(parse_config(small | {"stream": {"games_per_version": 16, "max_lag": 4, "reuse": 2}}))
    assert reused is not None
    assert "permits for 40 games are too few: 72 games keep" in reused
    assert stream_hint(parse_config({})) is None


async def test_a_restarted_buffer_goes_on_with_the_same_games_of_several(tmp_path: Path) -> None:
    config = StreamConfig(games_per_version=4, max_lag=1)
    games = [WordsOfGame("taboo", 0.5, WORDS), WordsOfGame("kuhn", 0.5, ("KJ", "QK"))]
    plan = WordStream(games, 0)
    wanted = [plan.lease().scenario for _ in range(8)]

    buffer = BufferActor(str(tmp_path))
    await buffer.open_stream(StreamSpec(WordStream(games, 0), config, 0, Opponents(0), {"policy": 0}))
    tasks = await buffer.lease("arena", 4, "first")
    again = BufferActor(str(tmp_path))
    assert await again.lease("arena", 4, "first") == tasks
    tasks += await again.lease("arena", 4, "second")
    assert [(task.scenario, task.game) for task in tasks] == wanted


def test_the_weights_of_a_checkpoint_are_the_same_version_under_every_number() -> None:
    lineage = Lineage.from_cursor({"num_learned": 0, "versions": {"policy": 1}})
    for version in (1, 2, 3):
        lineage.published(version, {"policy": version + 1})
    lineage.published(2, {"policy": 5})  # resumed at version 2, which was number 3
    lineage.published(3, {"policy": 6})
    lineage.published(2, {"policy": 7})  # resumed there again: numbers 6 and 4 are two abandoned versions
    lineage.published(3, {"policy": 8})
    assert [lineage.version_of("policy", number) for number in (1, 2, 3, 5, 7, 8)] == [0, 1, 2, 2, 2, 3]
    assert [lineage.version_of("policy", number) for number in (4, 6)] == [1, 1], "two updates from version 3, not none"


def test_each_policy_has_numbers_of_its_own() -> None:
    lineage = Lineage.from_cursor({"num_learned": 4, "versions": {"attacker": 9, "defender": 7}})
    lineage.published(5, {"attacker": 10, "defender": 8})
    assert (lineage.version_of("attacker", 9), lineage.version_of("defender", 8)) == (4, 5)
    assert len(lineage.starts) == 1, "both rose by one with the version: nothing was resumed"


def test_a_cursor_without_numbers_is_read_as_one_attempt() -> None:
    """Of a run before there were any: games before the checkpoint are as old as their numbers say."""
    lineage = Lineage.from_cursor({"num_learned": 6, "versions": {"policy": 8}})
    assert [lineage.version_of("policy", number) for number in (5, 8, 9)] == [3, 6, 7]


def test_what_was_written_is_read_back() -> None:
    lineage = Lineage.from_cursor({"num_learned": 0, "versions": {"policy": 1}})
    lineage.published(1, {"policy": 2})
    cursor = {"num_learned": 1, "versions": {"policy": 3}, "numbers": [list(each) for each in lineage.starts]}
    assert Lineage.from_cursor(cursor).starts == [(0, {"policy": 1}), (1, {"policy": 3})]

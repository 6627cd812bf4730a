"""Permits, staleness, order and reuse of a stream; what becomes of the games of an arena that died."""

from __future__ import annotations

import asyncio
import gc
import json
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actors.arena import GameTask, Player, Rules, play_games
from actors.league import Opponents
from actors.models import load_tokenizer
from actors.policy import Completion, Request, Sampling
from actors.pool import EnginePool
from cluster.arena_actor import _Leases, _Outbox
from cluster.buffer import BufferActor, ReplayBuffer, StreamSpec
from cluster.launch import stream_hint
from cluster.stream import GameStream
from spag_ray.config import StreamConfig, parse_config
from spag_ray.episode import Episode, Turn
from spag_ray.episode_log import EpisodeLog, read_log
from spag_ray.errors import ConfigError
from spag_ray.game import Outcome, Role, Verdict
from spag_ray.prompts import load_template, make_renderer
from spag_ray.wire import decode, encode
from spag_ray.words import WordStream

WORDS = ("river", "piano", "tiger", "apple", "castle")


def stream_of(seed: int = 0, **config: Any) -> GameStream:
    return GameStream(WordStream(WORDS, seed), StreamConfig(**config), {"policy": 0}, seed)


def spec(config: StreamConfig) -> StreamSpec:
    return StreamSpec(WordStream(WORDS, 0), config, 0, Opponents(0), {"policy": 0})


def played(task: GameTask, version: int = 0, outcome: Outcome = Outcome.ATTACKER_WINS) -> Episode:
    turns = (
        Turn(Role.ATTACKER, "a", (1,), (2,), (-0.5,), "policy", version, version),
        Turn(Role.DEFENDER, "b", (1,), (2,), (-0.5,), "another", 0, 0),
    )
    verdict = Verdict(outcome, 2, "r", None, None)
    return Episode(task.episode_id, task.number, task.stage, task.target_word, 3, "strict", 1.0, turns, verdict)


def finish(stream: GameStream, task: GameTask, version: int = 0, **details: Any) -> bool:
    episode = played(task, version, **details)
    return stream.add(episode, encode(episode))


def numbers(batch: list[bytes] | None) -> list[int]:
    assert batch is not None
    return [decode(data).number for data in batch]


def test_with_lag_0_a_version_plays_its_own_games_and_waits_for_the_next() -> None:
    stream = stream_of(games_per_version=4, max_lag=0)
    for version in range(3):
        tasks = stream.lease("arena", 10)
        assert len(tasks) == 4 and stream.lease("arena", 1) == [] and stream.take() is None
        for task in tasks:
            assert finish(stream, task, version)
        assert len(numbers(stream.take())) == 4 and stream.lease("arena", 1) == []
        stream.advance({"policy": version + 1})
    assert stream.counts().lag == Counter({0: 12}) and stream.counts().evicted == 0


def test_a_sample_counts_what_came_and_not_what_the_log_held(tmp_path: Path) -> None:
    config = {"games_per_version": 2, "max_lag": 1}
    buffer, stream = ReplayBuffer(str(tmp_path)), stream_of(**config)
    buffer.open_stream(stream, None)
    assert buffer.sample().waiting == 0 and buffer.sample().oldest_s == 0
    records = [encode(played(task)) for task in stream.lease("arena", 4)]
    buffer.add([*records[:3], records[0]])
    buffer.add([encode(played(GameTask(0, "river", "eval-base", 0)))])
    time.sleep(0.02)
    sample = buffer.sample()
    assert sample.waiting == 4 and 0.02 <= sample.oldest_s < 10
    assert sample.stream is not None and (sample.stream.permits_free, sample.stream.repeated) == (0, 1)
    assert {phase: count.num_games for phase, count in sample.played.items()} == {"self_play": 3, "evaluation": 1}
    assert sample.played["self_play"].num_tokens == 6
    buffer.take("eval-base")
    assert buffer.sample().waiting == 3

    again = ReplayBuffer(str(tmp_path))
    again.open_stream(stream_of(**config), None)
    assert again.sample().waiting == 3 and again.sample().played == {}


@settings(max_examples=60, deadline=None)
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
    version, under_way, taken, most = 0, [], Counter[int](), 0
    for _ in range(300):
        action = random.choice(["lease", "finish", "finish", "learn", "die"])
        if action == "lease":
            under_way += [(task, version) for task in stream.lease("arena", random.randint(1, 9))]
        elif action == "finish" and under_way:
            task, began = under_way.pop(random.randrange(len(under_way)))
            assert finish(stream, task, began) and not finish(stream, task, began), "one game counts once"
        elif action == "die" and random.random() < 0.1:
            assert stream.give_up("arena") == len(under_way)
            under_way = []
        elif action == "learn" and (batch := stream.take()) is not None:
            for data in batch:
                episode = decode(data)
                taken[episode.number] += 1
                assert version - episode.turns[0].first_version <= max_lag
            version += 1
            stream.advance({"policy": version})
        counts = stream.counts()
        most = max(most, len(under_way) + counts.waiting)
    assert most <= (max_lag + 1) * per_version
    assert set(taken.values()) <= {1} and max(stream.counts().lag, default=0) <= max_lag


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
    assert stream.take() is None and stream.counts().evicted == 1
    assert stream.counts().permits_free == free + 1


def test_every_word_is_played_equally_often_also_when_arenas_die() -> None:
    stream = stream_of(games_per_version=5, max_lag=3)
    words: Counter[str] = Counter()
    for version in range(20):
        lost = stream.lease("dead", 3)
        assert stream.give_up("dead") == 3
        again = stream.lease("arena", 100)
        assert [task.number for task in again[:3]] == [task.number for task in lost], "its words come first"
        for task in again:
            words[task.target_word] += 1
            finish(stream, task, version)
        assert stream.take() is not None
        stream.advance({"policy": version + 1})
    assert max(words.values()) - min(words.values()) <= 1
    late = lost[0]
    assert not finish(stream, late, 0), "the dead arena's own game came after all: it counts once"
    assert stream.counts().repeated == 1


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2), st.integers(1, 4), st.integers(1, 2), st.randoms(use_true_random=False))
def test_a_stream_is_what_its_log_and_its_cursor_say(max_lag: int, per_version: int, reuse: int, random: Any) -> None:
    """It is made anew again and again, from the log as it is then and the cursor as it was last written; a learner that
    lost versions goes back to an older cursor. Nothing is lost, nothing is learned more often than configured."""
    reuse = min(reuse, max_lag + 1)
    config = StreamConfig(games_per_version=per_version, max_lag=max_lag, reuse=reuse)
    log: list[bytes] = []
    stream = GameStream(WordStream(WORDS, 0), config, {"policy": 0}, 0)
    cursor, kept = stream.cursor(), (stream.cursor(), Counter[int](), 0)
    version, under_way, uses = 0, list[tuple[GameTask, int]](), Counter[int]()
    published = 0
    for _ in range(200):
        action = random.choice(["lease", "finish", "finish", "learn", "keep", "crash", "go back"])
        if action == "lease":
            under_way += [(task, published) for task in stream.lease("arena", random.randint(1, 6))]
        elif action == "finish" and under_way:
            task, began = under_way.pop(random.randrange(len(under_way)))
            episode = played(task, began)
            if stream.add(episode, encode(episode)):
                log.append(encode(episode))
        elif action == "learn" and (batch := stream.take()) is not None:
            cursor = stream.cursor()
            if random.random() < 0.3:  # the buffer dies while the learner has the batch
                stream = GameStream(WordStream(WORDS, 0), config, {"policy": 0}, 0)
                stream.restore(json.loads(json.dumps(cursor)), records(log))
                assert sorted(stream.take() or []) == sorted(batch), "asked again, the same"
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
            stream = GameStream(WordStream(WORDS, 0), config, {"policy": 0}, 0)
            stream.restore(json.loads(json.dumps(cursor)), records(log))
        assert max(uses.values(), default=0) <= reuse
    seen = sorted(decode(data).number for data in log)
    assert len(seen) == len(set(seen)), "a game is in the log once"
    stream = GameStream(WordStream(WORDS, 0), config, {"policy": 0}, 0)
    stream.restore(cursor, records(log))
    for number in sorted(set(range(seen[-1] + 1 if seen else 0)) - set(seen)):
        assert stream.lease("arena", 1)[0].number == number if stream.counts().permits_free else True


def records(log: list[bytes]) -> list[tuple[Episode, bytes]]:
    return [(decode(data), data) for data in log]


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
        uses.update(numbers(stream.take()))
        stream.advance({"policy": version + 1})
    assert set(uses.values()) <= {1, 2} and begun <= 2 * 12 + 4
    assert sum(count == 2 for count in uses.values()) >= 20


def test_a_stream_that_cannot_be_is_refused() -> None:
    with pytest.raises(ConfigError, match="set max_lag to at least 2"):
        parse_config({"stream": {"reuse": 3, "max_lag": 1}})
    with pytest.raises(ConfigError, match=r"multiple of stream\.games_per_version"):
        parse_config({"schedule": "stream", "self_play": {"games_per_round": 50}})
    with pytest.raises(ConfigError, match="drop one of them"):
        parse_config({"schedule": "stream", "placement": "colocated"})


def test_arenas_wait_for_permits_and_the_learner_for_episodes(tmp_path: Path, loop: Any) -> None:
    async def scenario() -> None:
        buffer = BufferActor(str(tmp_path))
        await buffer.open_stream(spec(StreamConfig(games_per_version=2, max_lag=0)))
        tasks = await buffer.lease("arena", 8)
        waiting = asyncio.create_task(buffer.lease("arena", 8))
        assert len(tasks) == 2 and await buffer.batch(0.01) is None
        learning = asyncio.create_task(buffer.batch(5))
        await buffer.add([encode(played(tasks[0]))])
        await asyncio.sleep(0.01)
        assert not learning.done()
        await buffer.add([encode(played(tasks[1]))])
        assert len(await learning or []) == 2 and not waiting.done()
        await buffer.advance({"policy": 1})
        assert len(await waiting) == 2
        last = asyncio.create_task(buffer.lease("arena", 8))
        await buffer.close_stream()
        assert await last == []

    loop.run(scenario())


def test_what_the_learner_is_given_is_in_the_log_by_then(
    tmp_path: Path, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    append = EpisodeLog.append

    def slow(log: EpisodeLog, *data: bytes) -> None:
        time.sleep(0.2)
        append(log, *data)

    monkeypatch.setattr(EpisodeLog, "append", slow)

    async def scenario() -> None:
        buffer = BufferActor(str(tmp_path))
        await buffer.open_stream(spec(StreamConfig(games_per_version=2, max_lag=0)))
        adding = [asyncio.create_task(buffer.add([encode(played(task))])) for task in await buffer.lease("arena", 2)]
        batch = await buffer.batch(5)
        logged = [encode(episode) for episode in read_log(tmp_path / "stream.log")]
        assert batch is not None and sorted(batch) == sorted(logged)
        again = BufferActor(str(tmp_path))  # as after a crash at this very moment
        assert sorted(await again.batch(5) or []) == sorted(batch)
        await asyncio.gather(*adding)

    loop.run(scenario())


class Instant:
    """Answers at once, with the same words."""

    name, version = "policy", 0

    def __init__(self, reply: tuple[int, ...]) -> None:
        self._reply = reply

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        logprobs = (-0.5,) * len(self._reply)
        version = self.version
        return [Completion(r.request_id, self._reply, logprobs, version, version, "stop") for r in requests]


class Here:
    """An object's methods as an actor's: `.name.remote(...)`."""

    def __init__(self, target: Any) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return SimpleNamespace(remote=getattr(self._target, name))


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_memory_stays_flat_over_20_000_games(tiny_model: Path, tmp_path: Path, loop: Any) -> None:
    """The whole way of a game, but for Ray and the models: leases, arena, referee, outbox, buffer, log, batches."""
    num_games, per_version = 20_000, 100

    async def scenario() -> list[int]:
        buffer = BufferActor(str(tmp_path))
        renderer = make_renderer(load_template("chat"), load_tokenizer(str(tiny_model)), 2)
        policy: Any = Instant(renderer.reply_ids("do you like music ?"))
        pool = EnginePool("policy")
        pool.join("engine", policy)
        seat = Player(pool, renderer, Sampling())
        config = StreamConfig(games_per_version=per_version, max_lag=1)
        await buffer.open_stream(spec(config))

        async def play() -> None:
            outbox = _Outbox(Here(buffer))
            source = _Leases(Here(buffer), "arena")
            async for episode in play_games(source, {"attacker": seat, "defender": seat}, Rules(2), 64):
                await outbox.put(encode(episode))
            await outbox.close()

        playing = asyncio.create_task(play())
        memory = []
        for version in range(1, num_games // per_version + 1):
            batch = await buffer.batch(60)
            assert batch is not None and len(batch) == per_version
            policy.version = version
            await buffer.advance({"policy": version})
            if version % 20 == 0:
                gc.collect()
                memory.append(psutil.Process().memory_info().rss)
        await buffer.close_stream()
        playing.cancel()
        assert (await buffer.stream_counts()).finished >= num_games
        return memory

    memory = loop.run(scenario())
    assert len(memory) == 10 and memory[-1] < 1.05 * memory[1], [size // 2**20 for size in memory]


def test_a_stream_whose_permits_starve_the_engines_says_what_to_change() -> None:
    small = {"schedule": "stream", "stream": {"games_per_version": 16}, "self_play": {"games_per_round": 160}}
    hint = stream_hint(parse_config(small))
    assert hint is not None and "48 games are fewer than the 80" in hint
    assert stream_hint(parse_config(small | {"stream": {"games_per_version": 16, "max_lag": 4}})) is None
    assert stream_hint(parse_config({})) is None

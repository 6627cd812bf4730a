"""A long stream does not grow in memory."""

import asyncio
import gc
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from actors.arena import Player
from actors.models import load_tokenizer
from actors.policy import Completion, Request, Sampling
from actors.pool import EnginePool
from cluster.buffer.buffer_actor import BufferActor
from cluster.rollout.arena_actor import _Leases, _Outbox
from spag_ray.config.parts import StreamConfig
from spag_ray.episodes.wire import encode
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from tests.support.loop import play_games
from tests.support.streams import here, spec
from tests.support.taboo import taboo_rules


class Instant:
    """Answers at once, with the same words."""

    name, version = "policy", 0

    def __init__(self, reply: tuple[int, ...]) -> None:
        self._reply = reply

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        logprobs = (-0.5,) * len(self._reply)
        version = self.version
        return [Completion(r.request_id, self._reply, logprobs, version, version, "stop") for r in requests]


@pytest.mark.timeout(300)
def test_memory_stays_flat_over_8_000_games(tiny_model: Path, tmp_path: Path, loop: Any) -> None:
    """The whole way of a game, but for Ray and the models: leases, arena, referee, outbox, buffer, log, batches."""
    num_games, per_version = 8_000, 100

    async def scenario() -> list[int]:
        buffer = BufferActor(str(tmp_path))
        renderer = taboo_renderer(load_template("chat"), load_tokenizer(str(tiny_model)), 2)
        policy: Any = Instant(renderer.reply_ids("do you like music ?"))
        pool = EnginePool("policy")
        pool.join("engine", policy)
        seat = Player(pool, renderer, Sampling())
        config = StreamConfig(games_per_version=per_version, max_lag=1)
        await buffer.open_stream(spec(config))

        async def play() -> None:
            outbox = _Outbox(here(buffer))
            source = _Leases(here(buffer), "arena")
            async for episode in play_games(source, {"attacker": seat, "defender": seat}, taboo_rules(2), 64):
                await outbox.put(encode(episode))
            await outbox.close()

        playing = asyncio.create_task(play())
        memory = []
        for version in range(1, num_games // per_version + 1):
            batch = await buffer.batch(60)
            assert batch is not None
            assert len(batch) == per_version
            policy.version = version
            await buffer.advance({"policy": version})
            if version % 8 == 0:
                gc.collect()
                memory.append(psutil.Process().memory_info().rss)
        await buffer.close_stream()
        playing.cancel()
        assert (await buffer.stream_counts()).finished >= num_games
        return memory

    memory = loop.run(scenario())
    assert len(memory) == 10, [size // 2**20 for size in memory]
    assert memory[-1] < 1.05 * memory[1], [size // 2**20 for size in memory]

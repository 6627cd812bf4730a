"""An arena's actor: several plays at once, each ended by itself."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from actors.arena import GameTask, Rules
from actors.policy import Sampling
from cluster.buffer.buffer_actor import BufferActor
from cluster.buffer.stream import STAGE
from cluster.rollout import arena_actor
from cluster.rollout.arena_actor import ArenaActor
from cluster.types import Seat
from spag_ray.config.parts import StreamConfig
from spag_ray.game.prompt_file import load_template
from tests.support.decks import cards_of
from tests.support.streams import Here, spec


def test_a_stream_is_stopped_at_once_also_after_an_evaluation(
    tiny_model: Path, tmp_path: Path, loop: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The games of the stream wait for an engine, so they do not end by themselves."""
    monkeypatch.setattr(arena_actor, "redirect_output", lambda path: None)  # it would take the test's own

    async def scenario() -> None:
        buffer = BufferActor(str(tmp_path))
        await buffer.open_stream(spec(StreamConfig(games_per_version=4, max_lag=0)))
        arena = ArenaActor(
            name="arena-0",
            log_path="",
            template=load_template("chat"),
            rules=Rules(2),
            turn_timeout_s=60,
            join_timeout_s=60,
            buffer=Here(buffer),
        )
        waits = Seat("policy", "policy", Sampling(), str(tiny_model))
        expert = Seat("expert", "scripted", Sampling(), str(tiny_model), cards_of({"river": ["water"]}))
        stream = asyncio.create_task(arena.play_stream({"attacker": waits, "defender": waits}, 4))
        while (await buffer.stream_counts()).begun < 4:
            await asyncio.sleep(0.01)
        evaluation = [GameTask(number, "river", "eval-spag-1") for number in range(3)]
        assert await arena.play(evaluation, {"attacker": expert, "defender": expert}, 2) == 3
        stopped = asyncio.create_task(
            arena.play([GameTask(9, "river", "eval-spag-2")], {"attacker": waits, "defender": waits}, 1)
        )
        await asyncio.sleep(0.05)
        await arena.stop("eval-spag-2")
        assert await asyncio.wait([stopped], timeout=10) == ({stopped}, set())
        assert not stream.done(), "only what is named is stopped"
        await arena.stop(STAGE)
        (ended, waiting) = await asyncio.wait([stream], timeout=10)
        assert ended, "stop waits for the games of the stream"
        assert not waiting, "stop waits for the games of the stream"

    loop.run(scenario())

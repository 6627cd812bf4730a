"""An arena's actor: several plays at once, each ended by itself."""

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from actors.arena import LISTENER, GameTask, Rules
from actors.endpoint_policy import Endpoint, EndpointPolicy
from actors.policy import Sampling
from cluster.buffer.buffer_actor import BufferActor
from cluster.buffer.stream import STAGE
from cluster.rollout import arena_actor
from cluster.rollout.arena_actor import ArenaActor
from cluster.types import Engine, Seat
from spag_ray.config.parts import StreamConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import decode
from spag_ray.errors import InputError
from spag_ray.game.rules import Role
from spag_ray.games.kuhn import KuhnPoker
from tests.support.decks import cards_of
from tests.support.streams import here, spec
from tests.support.taboo import taboo_rules


async def test_a_stream_is_stopped_at_once_also_after_an_evaluation(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The games of the stream wait for an engine, so they do not end by themselves."""
    monkeypatch.setattr(arena_actor, "redirect_output", lambda path: None)  # it would take the test's own

    buffer = BufferActor(str(tmp_path))
    await buffer.open_stream(spec(StreamConfig(games_per_version=4, max_lag=0)))
    arena = ArenaActor(
        name="arena-0", log_path="", games=[taboo_rules(2)], turn_timeout_s=60, join_timeout_s=60, buffer=here(buffer)
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


async def test_a_listener_is_asked_in_games_whose_hints_are_paid_alone(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No engine of its pool is there, so a game that asks it waits, and is kept without its scores."""
    (folder := tmp_path / "other").symlink_to(tiny_model)
    monkeypatch.setattr(arena_actor, "redirect_output", lambda path: None)

    async def scenario() -> tuple[list[Episode], list[str]]:
        buffer = BufferActor(str(tmp_path))
        unpaid = replace(taboo_rules(2), name="mine")  # a game of a run without gains of its own
        games = [replace(taboo_rules(2), heard="claim"), unpaid, Rules(KuhnPoker(), "kuhn")]
        arena = ArenaActor("arena-0", "", games, 60, join_timeout_s=0.1, buffer=here(buffer))
        expert = Seat("expert", "scripted", Sampling(), str(tiny_model), cards_of({"river": ["water"]}))
        listener = Seat("listener", "listener", Sampling(), str(folder))
        seats = {"attacker": expert, "defender": expert, LISTENER: listener}
        tasks = [GameTask(n, "river", "expert", game=name) for n, name in enumerate(("taboo", "mine"))]
        tasks.append(GameTask(2, "KJ", "expert", game="kuhn"))
        assert await arena.play(tasks, seats, 2) == 3
        played = [decode(data) for data in await buffer.take("expert")]
        return played, [name for model, name in arena._renderers if model == str(folder)]

    played, rendered = await scenario()
    assert [turn.listener_logprob for episode in played for turn in episode.turns if turn.listener_logprob] == []
    assert rendered == ["taboo"]


async def test_a_served_player_keeps_its_connections_from_play_to_play(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_actor, "redirect_output", lambda path: None)
    made: list[Any] = []

    class Counted(EndpointPolicy):
        def __init__(self, *arguments: Any, **named: Any) -> None:
            made.append((*arguments, *named.values()))
            super().__init__(*arguments, **named)

    monkeypatch.setattr(arena_actor, "EndpointPolicy", Counted)

    games = [taboo_rules(2), Rules(KuhnPoker(), "kuhn")]
    arena = ArenaActor("arena-0", "", games, 60, 60, here(BufferActor(str(tmp_path))))
    seat = Seat("far", "far", Sampling(), str(tiny_model), endpoint=Endpoint("http://127.0.0.1:9/v1", "talker"))
    players = [arena._player(seat, rules) for _ in range(3) for rules in games]
    assert [list(each.pool.games) for each in players] == [["http://127.0.0.1:9/v1"]] * 6
    assert len({id(each.pool) for each in players}) == 2
    for policy in arena._served.values():
        await policy.close()
    assert len(made) == 2, "one a game"
    assert {arguments[-1] for arguments in made} == {15}, "retries of 8 s fill a turn of 60 s"


async def test_an_arena_plays_each_game_by_its_own_rules_with_scripted_seats_of_its_own(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_actor, "redirect_output", lambda path: None)

    buffer = BufferActor(str(tmp_path))
    games = [taboo_rules(2), Rules(KuhnPoker(), "kuhn")]
    arena = ArenaActor("arena-0", "", games, 60, 60, here(buffer))
    expert = Seat("expert", "scripted", Sampling(), str(tiny_model), cards_of({"river": ["water"]}))
    tasks = [GameTask(0, "river", "expert", game="taboo"), GameTask(1, "KJ", "expert", game="kuhn")]
    assert await arena.play(tasks, {"attacker": expert, "defender": expert}, 2) == 2
    visit = GameTask(0, "KJ", "visit", game="kuhn")
    text, verdict, _ = await arena.answer(visit, ["bet"], Role.DEFENDER, expert)
    assert text[0] == "bet"
    assert verdict is not None
    with pytest.raises(InputError, match="'river' is no scenario of kuhn, such as 'JQ'"):
        await arena.answer(replace(visit, scenario="river"), [], Role.DEFENDER, expert)
    taboo, kuhn = [decode(data) for data in await buffer.take("expert")]
    assert (taboo.game, taboo.rules, taboo.verdict.payoffs) == ("taboo", "strict", None)
    assert (kuhn.game, kuhn.rules, kuhn.max_turns) == ("kuhn", "", KuhnPoker().max_turns)
    assert kuhn.verdict.payoffs is not None


async def test_an_arena_knows_engines_of_which_it_has_no_share_but_its_pace_is_that_of_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arena_actor, "redirect_output", lambda path: None)
    arena = ArenaActor("arena-0", "", [taboo_rules(2)], 60, 60, here(BufferActor(str(tmp_path))))
    nobody: Any = None
    engines = [Engine(nobody, f"engine-policy-{number}", "policy") for number in range(3)]
    await arena.share("policy", "policy", [(engines[0], 1.0, True), (engines[1], 0.0, True), (engines[2], 0.0, False)])
    pool = arena._pools["policy"]
    assert list(pool.games) == [engine.name for engine in engines]
    assert arena._pace.num_engines == 1
    await arena.share("policy", "policy", [(engines[0], 0.0, False)])
    assert (await pool.seat()).name == "engine-policy-1", "the only one that takes new games"

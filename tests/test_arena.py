"""The arena: games over fakes that check what they are given."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from conftest import collect

from actors.arena import GameTask, Player, Rules, play_game, play_games
from actors.models import load_tokenizer
from actors.policy import Completion, Request, Sampling
from actors.scripted_policy import ScriptedPolicy
from spag_ray.errors import EngineError
from spag_ray.game import Outcome, Role
from spag_ray.prompts import load_template, make_renderer

CARDS = {"river": ("water",), "piano": ("music",), "tiger": ("stripes",), "apple": ("fruit",)}
RULES = Rules(max_turns=3)


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> Any:
    return make_renderer(load_template("chat"), load_tokenizer(str(tiny_model)), 3)


class Talker:
    """Says given lines in turn; checks that it is asked as the protocol says."""

    name = "talker"
    version = 4

    def __init__(self, renderer: Any, lines: Sequence[str], delay_s: float = 0.0) -> None:
        self._renderer = renderer
        self._lines = lines
        self._delay_s = delay_s
        self.batches: list[int] = []
        self.at_once = 0
        self.most_at_once = 0
        self.seeds: list[int] = []

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.batches.append(len(requests))
        self.at_once += len(requests)
        self.most_at_once = max(self.most_at_once, self.at_once)
        await asyncio.sleep(self._delay_s)
        self.at_once -= len(requests)
        answers = []
        for request in requests:
            assert request.view is not None and request.prompt_ids and request.sampling.stop_token_ids
            assert (request.view.target_word is None) == (request.view.role is Role.DEFENDER)
            assert request.sampling.seed is not None
            self.seeds.append(request.sampling.seed)
            tokens = self._renderer.reply_ids(self._lines[len(request.view.history) % len(self._lines)])
            answers.append(Completion(request.request_id, tokens, (-0.5,) * len(tokens), 4, 4, "stop"))
        return answers


def player(policy: Any, renderer: Any) -> Player:
    return Player(policy, renderer, Sampling(1.0, 16))


def tasks(count: int) -> list[GameTask]:
    words = list(CARDS)
    return [GameTask(number, words[number % 4], "test", seed=1) for number in range(count)]


def test_a_game_ends_with_the_turn_that_decides_it(renderer: Any, loop: Any) -> None:
    talker = player(Talker(renderer, ["water", "a river ?"]), renderer)
    episode = loop.run(play_game(GameTask(0, "river", "test"), talker, talker, RULES))
    assert episode.verdict.outcome is Outcome.ATTACKER_WINS and len(episode.turns) == 2
    assert [turn.role for turn in episode.turns] == [Role.ATTACKER, Role.DEFENDER]
    assert episode.turns[1].policy == "talker" and episode.turns[1].first_version == 4


def test_a_game_nobody_decides_ends_after_all_its_turns(renderer: Any, loop: Any) -> None:
    talker = player(Talker(renderer, ["water"]), renderer)
    episode = loop.run(play_game(GameTask(0, "tiger", "test"), talker, talker, RULES))
    assert episode.verdict.outcome is Outcome.TIED and len(episode.turns) == 6


def test_each_prompt_of_a_seat_begins_with_all_it_read_and_said_before(renderer: Any, loop: Any) -> None:
    talker = player(Talker(renderer, ["water", "music"]), renderer)
    turns = loop.run(play_game(GameTask(0, "tiger", "test"), talker, talker, RULES)).turns
    for earlier, later in zip(turns, turns[2:], strict=False):
        assert later.prompt_ids[: len(earlier.prompt_ids + earlier.token_ids)] == earlier.prompt_ids + earlier.token_ids


def test_no_more_games_are_in_flight_than_allowed_and_none_is_lost(renderer: Any, loop: Any) -> None:
    talker = Talker(renderer, ["water"], delay_s=0.001)
    episodes = loop.run(
        collect(play_games(tasks(20), [player(talker, renderer)], [player(talker, renderer)], RULES, games_in_flight=6))
    )
    assert sorted(episode.number for episode in episodes) == list(range(20))
    assert talker.most_at_once == 6


def test_every_turn_of_every_game_has_a_seed_of_its_own_that_the_run_decides(renderer: Any, loop: Any) -> None:
    seeds = []
    for _ in range(2):
        talker = Talker(renderer, ["water"])
        loop.run(collect(play_games(tasks(5), [player(talker, renderer)], [player(talker, renderer)], RULES, 5)))
        seeds.append(sorted(talker.seeds))
    assert seeds[0] == seeds[1] and len(set(seeds[0])) == 30


def test_an_engine_error_ends_the_games_and_is_raised(renderer: Any, loop: Any) -> None:
    class Broken(Talker):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            raise EngineError("no more")

    broken = player(Broken(renderer, ["x"]), renderer)
    with pytest.raises(EngineError, match="no more"):
        loop.run(collect(play_games(tasks(3), [broken], [broken], RULES, 3)))


def test_the_scripted_expert_plays_sensible_games(renderer: Any, loop: Any) -> None:
    expert = player(ScriptedPolicy(CARDS, renderer.reply_ids), renderer)
    episodes = loop.run(collect(play_games(tasks(40), [expert], [expert], RULES, 8)))
    outcomes = [episode.verdict.outcome for episode in episodes]
    assert outcomes.count(Outcome.ATTACKER_WINS) > 5 and outcomes.count(Outcome.DEFENDER_WINS) > 5
    assert all(outcome.breaker is None for outcome in outcomes)

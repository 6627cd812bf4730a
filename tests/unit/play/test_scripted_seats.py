"""The scripted seats of a game other than Taboo: the game replies, repeatably, in tokens of the learner."""

from dataclasses import replace
from typing import Any

import pytest

from actors.arena import GameTask, Player, Rules, play_game
from actors.policy import GameView, Request, Sampling
from actors.pool import EnginePool
from actors.scripted_policy import ScriptedPolicy
from spag_ray.errors import EngineError
from spag_ray.game.rules import Role
from spag_ray.game.styles import game_renderer
from spag_ray.games.kuhn import KuhnPoker
from tests.support.families import tokenizer_of

VIEW = GameView(Role.DEFENDER, ("bet",), "KJ")


class Told(KuhnPoker):
    """Says what it was asked."""

    def scripted(self, seat: int, history: Any, scenario: str, rng: Any) -> str:
        return f"{seat} {list(history)} {scenario} {rng.random():.6f}"


def seats(game: Any, **options: Any) -> ScriptedPolicy:
    return ScriptedPolicy(game, lambda text: [*map(ord, text)], **options)


def test_the_game_is_asked_for_the_seat_the_texts_and_the_scenario() -> None:
    assert seats(Told()).reply(VIEW).startswith("1 ['bet'] KJ 0.")
    opening = replace(VIEW, role=Role.ATTACKER, history=())
    assert seats(Told()).reply(opening).startswith("0 [] KJ 0.")


def test_the_same_request_and_seed_give_the_same_reply_and_others_vary() -> None:
    assert seats(Told()).reply(VIEW, "a/1") == seats(Told()).reply(VIEW, "a/1")
    replies = {seats(Told(), seed=seed).reply(VIEW, name) for seed in (0, 1) for name in ("a/1", "a/2", "b/1")}
    assert len(replies) == 6


async def test_a_reply_comes_as_the_tokens_of_the_renderer() -> None:
    renderer = game_renderer(KuhnPoker(), tokenizer_of("chatml"), "lines")
    policy = ScriptedPolicy(KuhnPoker(), renderer.reply_ids)
    [answer] = await policy.generate([Request("g/1", (5,), Sampling(), VIEW)])
    assert renderer.text_of(answer.token_ids) in ("call", "fold")
    assert answer.token_ids[-1] == renderer.end_ids[0]
    assert answer.logprobs == (0.0,) * len(answer.token_ids)


def test_a_game_without_scripted_seats_is_refused() -> None:
    class Bare:
        seats, max_turns = ("a", "b"), 1

    with pytest.raises(EngineError, match="Bare has no scripted seats"):
        seats(Bare())


async def test_whole_games_between_scripted_seats_are_legal_and_decided() -> None:
    game = KuhnPoker()
    renderer = game_renderer(game, tokenizer_of("chatml"), "chat")
    pool = EnginePool("expert")
    pool.join("expert", ScriptedPolicy(game, renderer.reply_ids))
    players = dict.fromkeys(("attacker", "defender"), Player(pool, renderer, Sampling()))
    rules = Rules(game, "kuhn")
    ends = set()
    for number in range(40):
        task = GameTask(number, game.scenarios()[number % 6], "expert")
        episode = await play_game(task, players, rules)
        assert episode.game == "kuhn"
        assert episode.verdict.outcome.is_decided
        ends.add(str(episode.verdict.end_reason))
    assert ends == {"fold", "showdown after a call", "showdown after checks"}

"""A game between a person and a model."""

import math
from pathlib import Path
from typing import Any

import pytest

from actors.arena import GameTask, Player, Rules
from actors.models import load_tokenizer
from actors.policy import Sampling
from actors.pool import EnginePool
from actors.transformers_policy import TransformersPolicy
from cluster.serve.visits import MAX_CHARACTERS, PERSON, PersonGame
from spag_ray.episodes.wire import decode, encode
from spag_ray.errors import InputError
from spag_ray.game.rules import EndReason, Outcome, Role
from spag_ray.game.styles import game_renderer
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.taboo.game import taboo_renderer
from spag_ray.games.taboo.prompt_file import load_template
from tests.support.taboo import taboo_rules


@pytest.fixture(scope="module")
def player(tiny_model: Path) -> Player:
    renderer = taboo_renderer(load_template("chat"), load_tokenizer(str(tiny_model)), 3)
    return Player(pool_of(tiny_model), renderer, Sampling(max_new_tokens=6))


def pool_of(model: Path) -> EnginePool:
    pool = EnginePool("tiny")
    pool.join("tiny", TransformersPolicy(str(model), max_model_len=512))
    return pool


def game_of(person: Role, seed: int = 0) -> PersonGame:
    return PersonGame(GameTask(0, "river", "visit", seed=seed), person, taboo_rules(3))


def test_a_person_who_says_the_word_breaks_the_rules_and_the_words_that_decided_are_named(player: Player) -> None:
    game = game_of(Role.ATTACKER)
    game.say("  the   River is\nbig ", player)
    assert game.turns[0].text == "the River is big"
    assert game.verdict is not None
    assert (game.verdict.outcome, game.verdict.span) == (Outcome.ATTACKER_BREACH, (4, 9))
    assert game.to_move is None
    with pytest.raises(InputError, match="not your turn"):
        game.say("more", player)


@pytest.mark.parametrize(("text", "why"), [("  \n", "say something"), ("a" * (MAX_CHARACTERS + 1), "at most 500")])
def test_what_is_no_turn_is_refused_and_changes_nothing(player: Player, text: str, why: str) -> None:
    game = game_of(Role.ATTACKER)
    with pytest.raises(InputError, match=why):
        game.say(text, player)
    assert game.turns == []


async def test_a_person_guesses_and_the_look_back_says_what_the_model_thought(player: Player) -> None:
    for seed in range(20):  # until the model's first turn does not break the rules
        game = game_of(Role.DEFENDER, seed)
        with pytest.raises(InputError, match="not your turn"):
            game.say("me first", player)
        await game.reply(player)
        if game.verdict is None:
            break
    game.say("I know the word! It is `river`", player)
    assert game.verdict is not None
    assert game.verdict.end_reason is EndReason.RIGHT_GUESS
    seen = await game.look_back(player, 512)
    assert [len(each) for each in seen.logprobs] == [turn.num_tokens for turn in game.turns]
    assert seen.logprobs[0] == pytest.approx(game.turns[0].logprobs, abs=1e-4), "sampled at temperature 1"
    (scored,) = await player.pool.score(await player.pool.seat(), [own_claim(game, player)])
    assert seen.known == {1: pytest.approx(math.exp(sum(scored.logprobs)))}

    room = game.turns[1].num_tokens + len(game.turns[1].prompt_ids)
    short = await game.look_back(player, room)
    assert short.logprobs == (seen.logprobs[0], ()), "the second turn does not fit"

    episode = game.episode(7, 1.0, seen.known)
    assert decode(encode(episode)) == episode
    assert [turn.policy for turn in episode.turns] == ["tiny", PERSON]
    assert not any(episode.turns[1].logprobs), "the model did not sample it"
    assert episode.turns[1].word_logprob is None


def own_claim(game: PersonGame, player: Player) -> Any:
    claim = player.renderer.claim("river")
    return (*game.turns[1].prompt_ids, *claim.opening_ids), claim.word_ids


async def test_kuhn_poker_is_played_by_the_protocol(tiny_model: Path) -> None:
    kuhn = KuhnPoker()
    renderer = game_renderer(kuhn, load_tokenizer(str(tiny_model)), "lines")
    player = Player(pool_of(tiny_model), renderer, Sampling(max_new_tokens=2))
    game = PersonGame(GameTask(0, "KJ", "visit"), Role.ATTACKER, Rules(kuhn, "kuhn", "lines"))
    game.say("bet", player)
    await game.reply(player)
    assert game.verdict is not None, "a random model breaks the rules, or it calls or folds"
    assert (await game.look_back(player, 512)).known == {}
    assert game.episode(0, 1.0, {}).game == "kuhn"

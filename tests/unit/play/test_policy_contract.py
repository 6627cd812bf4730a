"""One contract, three implementations: what an arena may expect of any policy."""

import asyncio
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from vllm.outputs import CompletionOutput

from actors.policy import GameView, Request, Sampling
from actors.transformers_policy import TransformersPolicy
from actors.vllm_policy import VllmPolicy
from spag_ray.channels.buckets import in_shared_memory
from spag_ray.errors import EngineError, WeightSyncError
from spag_ray.game.rules import Role
from spag_ray.games.taboo.expert import Habits
from tests.support.decks import cards_of
from tests.support.policies import GREEDY, PROMPT, snapshot_of
from tests.support.taboo import expert_of

VIEW = GameView(Role.ATTACKER, (), "river")
CARDS = cards_of({"river": ["water", "boat"], "piano": ["music", "keys"], "tiger": ["stripes"]})


@pytest.fixture(params=["vllm", "transformers", "scripted"])
def policy(request: pytest.FixtureRequest, tiny_model: Path) -> Any:
    if request.param == "vllm":
        return request.getfixturevalue("vllm_policy")
    if request.param == "transformers":
        return TransformersPolicy(str(tiny_model), max_model_len=512)
    return expert_of(CARDS, lambda text: [*(3 + ord(letter) % 40 for letter in text[:10]), 2])


@pytest.fixture(params=["vllm", "transformers"])
def model_policy(request: pytest.FixtureRequest, tiny_model: Path) -> Any:
    if request.param == "vllm":
        return request.getfixturevalue("vllm_policy")
    return TransformersPolicy(str(tiny_model), max_model_len=512)


def ask(name: str, sampling: Sampling = GREEDY, prompt: tuple[int, ...] = PROMPT) -> Request:
    return Request(name, prompt, sampling, VIEW)


async def test_answers_come_in_the_order_asked_with_a_logprob_for_every_token(policy: Any) -> None:
    requests = [ask(f"order-{index}", Sampling(1.0, 5 + index, seed=index, stop_token_ids=(2,))) for index in range(4)]
    answers = await policy.generate(requests)
    assert [answer.request_id for answer in answers] == [request.request_id for request in requests]
    for answer in answers:
        assert answer.token_ids
        assert len(answer.logprobs) == len(answer.token_ids)
        assert all(value <= 0 for value in answer.logprobs)
        assert answer.first_version == answer.last_version == 0


def test_the_same_request_is_answered_the_same_way_twice(policy: Any, loop: Any) -> None:
    sampling = Sampling(1.0, 12, seed=5, stop_token_ids=(2,))
    first, again = (loop.run(policy.generate([ask("same", sampling)]))[0] for _ in range(2))
    assert first.token_ids == again.token_ids


async def test_a_reply_ends_at_no_token_but_those_that_were_asked_for(model_policy: Any) -> None:
    """The folder's generation_config.json names token 2."""
    answers = [
        answer
        for seed in range(12)
        for answer in await model_policy.generate([ask(f"end-{seed}", Sampling(1.0, 30, seed=seed))])
    ]
    assert any(2 in answer.token_ids for answer in answers)
    assert {(len(answer.token_ids), answer.finish_reason) for answer in answers} == {(30, "length")}


async def test_a_reply_ends_at_a_stop_token_or_at_its_length(model_policy: Any) -> None:
    stopped_at_all = False
    for seed in range(12):
        sampling = Sampling(1.0, 30, seed=seed, stop_token_ids=(2,))
        (answer,) = await model_policy.generate([ask(f"stop-{seed}", sampling)])
        if answer.finish_reason == "stop":
            stopped_at_all = True
            assert answer.token_ids[-1] == 2
            assert 2 not in answer.token_ids[:-1]
        else:
            assert answer.finish_reason == "length"
            assert len(answer.token_ids) == 30
    assert stopped_at_all


async def test_a_context_that_is_full_before_the_reply_has_ended_is_said_to_be(model_policy: Any) -> None:
    (answer,) = await model_policy.generate([ask("full", prompt=(5,) * 512)])
    assert answer.token_ids == ()
    assert answer.finish_reason == "context"
    (answer,) = await model_policy.generate([ask("nearly", Sampling(temperature=0.0), prompt=(5,) * 509)])
    assert len(answer.token_ids) == 3
    assert answer.finish_reason == "context"
    short = Sampling(temperature=0.0, max_new_tokens=3)
    (answer,) = await model_policy.generate([ask("fits", short, prompt=(5,) * 509)])
    assert len(answer.token_ids) == 3
    assert answer.finish_reason == "length"


@pytest.mark.parametrize("reason", ["abort", "error"])
async def test_a_reply_that_vllm_breaks_off_is_no_reply(reason: str) -> None:
    """Its core ends all of them so when it is told to end. An empty one would break the rules of a game."""

    async def generate(*_: Any, **__: Any) -> Any:
        yield SimpleNamespace(finished=True, outputs=[CompletionOutput(0, "", [], 0.0, [], finish_reason=reason)])

    policy = VllmPolicy(SimpleNamespace(generate=generate), "policy-0", 0, max_model_len=512, on_cpu=True)
    with pytest.raises(EngineError, match=f"policy-0 did not finish .*: {reason}"):
        await policy.generate([ask("in progress")])


@pytest.mark.parametrize("temperature", [1.0, 0.5, 1.5])
async def test_scores_have_the_temperature_in_them(model_policy: Any, tiny_model: Path, temperature: float) -> None:
    asked = [(PROMPT, (9, 8, 7)), (PROMPT, (9, 2)), (PROMPT[:5], (11,))]
    found = await model_policy.score(asked, temperature)
    expected = await TransformersPolicy(str(tiny_model), max_model_len=512).score(asked, temperature)
    for score, reference in zip(found, expected, strict=True):
        assert score.logprobs == pytest.approx(reference.logprobs, abs=1e-3)
        assert score.is_greedy == reference.is_greedy


async def test_nothing_is_scored_at_the_temperature_of_greedy_play(model_policy: Any) -> None:
    with pytest.raises(EngineError, match="nothing can be scored at temperature 0"):
        await model_policy.score([(PROMPT, (9, 8))], 0.0)


@pytest.mark.parametrize("temperature", [1.0, 0.7, 1.5])
async def test_sampling_logprobs_have_the_temperature(model_policy: Any, tiny_model: Path, temperature: float) -> None:
    sampling = Sampling(temperature, 16, seed=3, stop_token_ids=(2,))
    (answer,) = await model_policy.generate([ask(f"temperature-{temperature}", sampling)])
    reference = TransformersPolicy(str(tiny_model), max_model_len=512)
    (expected,) = await reference.score([(PROMPT, answer.token_ids)], temperature)
    assert answer.logprobs == pytest.approx(expected.logprobs, abs=1e-3)


async def test_score_agrees_with_the_logprobs_of_a_greedy_reply(model_policy: Any, tiny_model: Path) -> None:
    (answer,) = await model_policy.generate([ask("score")])
    (scored,) = await model_policy.score([(PROMPT, answer.token_ids)])
    reference = TransformersPolicy(str(tiny_model), max_model_len=512)
    (expected,) = await reference.score([(PROMPT, answer.token_ids)])
    assert scored.logprobs == pytest.approx(expected.logprobs, abs=1e-4)


async def test_score_says_whether_tokens_are_what_greedy_play_says(model_policy: Any) -> None:
    (answer,) = await model_policy.generate([ask("greedy or not")])
    said = answer.token_ids
    others = [(*said[:place], token, *said[place + 1 :]) for place in (0, len(said) - 1) for token in (5, 6)]
    targets = [said, said[:1], *(other for other in others if other != said)]
    scores = await model_policy.score([(PROMPT, target) for target in targets])
    assert [score.is_greedy for score in scores] == [True, True] + [False] * (len(targets) - 2)
    assert len(targets) > 3


async def test_score_computes_what_it_scores_whatever_the_cache_has(model_policy: Any, tiny_model: Path) -> None:
    """Of tokens whose blocks are cached an engine computes nothing; a target that was read before is one."""
    whole = [*PROMPT, *(3 + 7 * place % 41 for place in range(100))]
    await model_policy.generate([ask("cached", prompt=tuple(whole))])
    cuts = [(whole[:place], whole[place:end]) for place, end in ((8, 108), (8, 108), (60, 108), (100, 104), (64, 65))]
    scored = await model_policy.score(cuts)
    again = [(await model_policy.score([cut]))[0] for cut in cuts]
    expected = await TransformersPolicy(str(tiny_model), max_model_len=512).score(cuts)
    for ours, twice, theirs in zip(scored, again, expected, strict=True):
        assert ours.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)
        assert twice.logprobs == pytest.approx(theirs.logprobs, abs=1e-4)


async def test_both_engines_decode_greedily_alike(vllm_policy: Any, tiny_model: Path) -> None:
    reference = TransformersPolicy(str(tiny_model), max_model_len=512)
    (ours,) = await vllm_policy.generate([ask("greedy")])
    (theirs,) = await reference.generate([ask("greedy")])
    assert ours.token_ids == theirs.token_ids


async def test_new_weights_are_played_and_stamped(model_policy: Any, tiny_model: Path, other_tiny_model: Path) -> None:
    (before,) = await model_policy.generate([ask("before")])
    await model_policy.load(snapshot_of(other_tiny_model, version=7))
    try:
        (after,) = await model_policy.generate([ask("after")])
        (expected,) = await TransformersPolicy(str(other_tiny_model), max_model_len=512).generate([ask("after")])
        assert after.token_ids == expected.token_ids != before.token_ids
        assert model_policy.version == after.first_version == after.last_version == 7
    finally:
        await model_policy.load(snapshot_of(tiny_model, version=0))
    (again,) = await model_policy.generate([ask("again")])
    assert again.token_ids == before.token_ids
    assert again.first_version == 0


@pytest.mark.parametrize("in_flight", [True, False])
async def test_weights_that_come_during_a_turn_wait_for_its_end_or_are_stamped_on_it(
    in_flight: bool, vllm_policy: Any, tiny_model: Path, other_tiny_model: Path
) -> None:
    try:
        requests = [ask(f"long-{in_flight}-{seed}", Sampling(1.0, 400, seed=seed)) for seed in range(12)]
        vllm_policy.take_figures()
        turns = asyncio.create_task(vllm_policy.generate(requests))
        async with asyncio.timeout(60):
            while (vllm_policy.take_figures().running_max or 0) < len(requests):  # else one may begin with 7
                await asyncio.sleep(0.01)
        await vllm_policy.load(snapshot_of(other_tiny_model, version=7), in_flight)
        answers = await turns
        assert all(len(answer.token_ids) == len(answer.logprobs) > 0 for answer in answers)
        versions = {(answer.first_version, answer.last_version) for answer in answers}
        assert versions <= {(0, 0), (0, 7)}
        assert ((0, 7) in versions) == in_flight
        assert vllm_policy.version == 7
    finally:
        await vllm_policy.load(snapshot_of(tiny_model, version=0))


async def test_a_turn_that_is_asked_for_while_new_weights_come_is_theirs(
    vllm_policy: Any, tiny_model: Path, other_tiny_model: Path
) -> None:
    try:
        snapshot = snapshot_of(other_tiny_model, version=7)
        await vllm_policy.begin_update(in_flight=False)
        turn = asyncio.create_task(vllm_policy.generate([ask("late")]))
        await asyncio.sleep(0.2)
        assert not turn.done()
        async for bucket in snapshot.buckets():
            with in_shared_memory(bucket) as update:
                await vllm_policy.take_update(update)
        await vllm_policy.end_update(7)
        (answer,) = await turn
        assert (answer.first_version, answer.last_version) == (7, 7)
    finally:
        await vllm_policy.load(snapshot_of(tiny_model, version=0))


async def test_a_policy_sleeps_and_wakes_as_it_was(model_policy: Any) -> None:
    (before,) = await model_policy.generate([ask("awake")])
    await model_policy.sleep()
    await model_policy.wake()
    (after,) = await model_policy.generate([ask("woken")])
    assert before.token_ids == after.token_ids


async def test_an_engine_that_takes_weights_in_its_sleep_plays_once_all_of_it_is_awake(
    vllm_policy: Any, tiny_model: Path, other_tiny_model: Path
) -> None:
    """As a run does where learner and engines share devices: weights wake, are replaced, and then the cache wakes."""

    expected = TransformersPolicy(str(other_tiny_model), max_model_len=512)
    (wanted,) = await expected.generate([ask("wanted")])
    try:
        await vllm_policy.sleep()
        turn = asyncio.create_task(vllm_policy.generate([ask("asked in its sleep")]))
        await vllm_policy.wake("weights")
        await vllm_policy.load(snapshot_of(other_tiny_model, version=7))
        await asyncio.sleep(0.5)
        assert not turn.done(), "its cache still sleeps"
        await vllm_policy.wake("kv_cache")
        (answer,) = await turn
        await vllm_policy.sleep()
        await vllm_policy.wake()
        answer, later = answer, (await vllm_policy.generate([ask("awake")]))[0]
        assert answer.token_ids == later.token_ids == wanted.token_ids
        assert answer.last_version == 7
    finally:
        await vllm_policy.load(snapshot_of(tiny_model, version=0))


async def test_an_engine_whose_weights_alone_are_awake_can_be_put_to_sleep(vllm_policy: Any) -> None:
    (before,) = await vllm_policy.generate([ask("first")])
    await vllm_policy.sleep()
    await vllm_policy.wake("weights")
    await vllm_policy.sleep()
    turn = asyncio.create_task(vllm_policy.generate([ask("asked in its sleep")]))
    await vllm_policy.wake("kv_cache")
    await asyncio.sleep(0.5)
    assert not turn.done(), "its weights sleep again"
    await vllm_policy.wake("weights")
    assert (await turn)[0].token_ids == before.token_ids


async def test_an_adapter_that_an_engine_does_not_hold_is_refused(model_policy: Any) -> None:
    with pytest.raises(EngineError, match="holds no adapter 'past-0'"):
        await model_policy.generate([replace(ask("adapter"), adapter="past-0")])
    with pytest.raises(EngineError, match="holds no adapter 'past-0'"):
        await model_policy.score([(PROMPT, (5, 6))], adapter="past-0")


async def test_a_damaged_bucket_is_refused_by_name(tiny_model: Path) -> None:
    policy = TransformersPolicy(str(tiny_model))
    good = snapshot_of(tiny_model, version=3)
    parts: Any = good.parts
    damaged = replace(good, parts=(replace(parts[0], checksum="0" * 16), *parts[1:]))
    with pytest.raises(WeightSyncError, match="bucket 0"):
        await policy.load(damaged)
    assert policy.version == 0


async def test_a_snapshot_with_tensors_missing_is_refused(tiny_model: Path) -> None:
    policy = TransformersPolicy(str(tiny_model))
    good = snapshot_of(tiny_model, version=3)
    with pytest.raises(WeightSyncError, match="lacks"):
        await policy.load(replace(good, parts=good.parts[1:]))


async def test_the_scripted_expert_says_so_when_it_is_asked_for_what_it_has_not() -> None:
    expert = expert_of(CARDS, lambda text: [3])
    with pytest.raises(EngineError, match="no probabilities"):
        await expert.score([((1,), (2,))])


def test_the_scripted_expert_hints_without_the_word_and_guesses_it(loop: Any) -> None:
    expert = expert_of(CARDS, lambda text: [3], Habits(waits=0.0), max_turns=4)
    hint = expert.reply(VIEW, "a")
    assert "river" not in hint
    assert any(clue in hint for clue in CARDS["river"].clues)
    heard = GameView(Role.DEFENDER, ("It goes with water and boat.",), "river")
    assert expert.reply(heard, "a") == "I know the word! It is `river`!"

"""The arena: games over fakes that check what they are given."""

import asyncio
import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import pytest

from actors.arena import LISTENER, GameTask, Player, Rules, TaskList, answer, play_game
from actors.models import load_tokenizer
from actors.policy import Completion, Request, Sampling, Score
from actors.pool import EnginePool
from actors.transformers_policy import TransformersPolicy
from spag_ray.errors import EngineError, EngineGoneError, ModelError
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.styles import game_renderer
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.taboo.decks import Card, Trap
from spag_ray.games.taboo.expert import Habits
from spag_ray.games.taboo.game import TabooGame, taboo_renderer
from spag_ray.games.taboo.prompt_file import PromptTemplate, Wording, load_template
from tests.support.decks import cards_of
from tests.support.families import tokenizer_of
from tests.support.loop import collect, play_games
from tests.support.taboo import expert_of, taboo_rules

CARDS = cards_of({"river": ["water"], "piano": ["music"], "tiger": ["stripes"], "apple": ["fruit"]})
RULES = taboo_rules(3)
THINKING = PromptTemplate(
    style="chat",
    wordings=(Wording(attacker="Hint at {target_word}.", defender="Find it."),),
    thought="<think>{thought}</think>",
)


@pytest.fixture(scope="module")
def renderer(tiny_model: Path) -> Any:
    return taboo_renderer(load_template("chat"), load_tokenizer(str(tiny_model)), 3)


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
            assert request.view is not None
            assert request.prompt_ids
            assert request.sampling.stop_token_ids
            assert request.sampling.seed is not None
            self.seeds.append(request.sampling.seed)
            tokens = self._renderer.reply_ids(self._lines[len(request.view.history) % len(self._lines)])
            answers.append(Completion(request.request_id, tokens, (-0.5,) * len(tokens), 4, 4, "stop"))
        return answers


def pool_of(*policies: Any, **options: Any) -> EnginePool:
    pool = EnginePool("talker", **options)
    for number, policy in enumerate(policies):
        join(pool, f"engine-{number}", policy)
    return pool


def join(pool: EnginePool, name: str, policy: Any, share: float = 1.0) -> None:
    """A Talker has what an arena uses of a policy."""
    pool.join(name, policy, share)


def both(pool: EnginePool, renderer: Any) -> dict[str, Player]:
    return dict.fromkeys(("attacker", "defender"), Player(pool, renderer, Sampling(1.0, 16)))


def playing(policy: Any, renderer: Any) -> dict[str, Player]:
    return both(pool_of(policy), renderer)


def tasks(count: int) -> list[GameTask]:
    words = list(CARDS)
    return [GameTask(number, words[number % 4], "test", seed=1) for number in range(count)]


async def test_a_game_ends_with_the_turn_that_decides_it(renderer: Any) -> None:
    talker = playing(Talker(renderer, ["water", "a river ?"]), renderer)
    episode = await play_game(GameTask(0, "river", "test"), talker, RULES)
    assert episode.verdict.outcome is Outcome.ATTACKER_WINS
    assert len(episode.turns) == 2
    assert [turn.role for turn in episode.turns] == [Role.ATTACKER, Role.DEFENDER]
    assert episode.turns[1].policy == "talker"
    assert episode.turns[1].first_version == 4


class Refreshed(Talker):
    """Gets new weights during each turn: one that begins with version n ends with n + 1."""

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        answers = await super().generate(requests)
        self.version += 1
        return [replace(each, first_version=self.version - 1, last_version=self.version) for each in answers]


async def test_a_turn_that_new_weights_interrupt_has_the_versions_of_its_first_and_last_token(renderer: Any) -> None:
    episode = await play_game(GameTask(0, "tiger", "test"), playing(Refreshed(renderer, ["water"]), renderer), RULES)
    assert [(turn.first_version, turn.last_version) for turn in episode.turns] == list(pairwise(range(4, 11)))


async def test_a_game_nobody_decides_ends_after_all_its_turns(renderer: Any) -> None:
    talker = playing(Talker(renderer, ["water"]), renderer)
    episode = await play_game(GameTask(0, "tiger", "test"), talker, RULES)
    assert episode.verdict.outcome is Outcome.TIED
    assert len(episode.turns) == 6


async def test_each_prompt_of_a_seat_begins_with_all_it_read_and_said_before(renderer: Any) -> None:
    talker = playing(Talker(renderer, ["water", "music"]), renderer)
    turns = (await play_game(GameTask(0, "tiger", "test"), talker, RULES)).turns
    for earlier, later in zip(turns, turns[2:], strict=False):
        assert later.prompt_ids[: len(earlier.prompt_ids + earlier.token_ids)] == earlier.prompt_ids + earlier.token_ids


@pytest.mark.parametrize("style", ["chat", "lines", "flat"])
async def test_a_visitors_player_has_read_the_rules_and_all_that_was_said(style: str, tiny_model: Path) -> None:
    renderer = taboo_renderer(load_template(style), load_tokenizer(str(tiny_model)), 3)
    heard: list[tuple[int, ...]] = []

    class Listener(Talker):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            heard.extend(request.prompt_ids for request in requests)
            return await super().generate(requests)

    player = Player(pool_of(Listener(renderer, ["what", "where", "when"])), renderer, Sampling())
    said, _, _ = await answer(GameTask(0, "river", "visit"), ["hint water"], Role.DEFENDER, player, RULES)
    texts = [*said, "big and old"]
    said, _, _ = await answer(GameTask(0, "river", "visit"), texts, Role.DEFENDER, player, RULES)
    text = renderer.text_of(heard[1])
    assert text.startswith(renderer.text_of(heard[0])[:40])
    assert len(heard[1]) > len(heard[0])
    for words in ("hint water", said[1], "big and old"):
        assert words in text


async def test_no_more_games_are_in_flight_than_allowed_and_none_is_lost(renderer: Any) -> None:
    talker = Talker(renderer, ["water"], delay_s=0.001)
    episodes = await collect(play_games(TaskList(tasks(20)), playing(talker, renderer), RULES, games_in_flight=6))
    assert sorted(episode.number for episode in episodes) == list(range(20))
    assert talker.most_at_once == 6


async def test_every_turn_of_every_game_has_a_seed_of_its_own_that_the_run_decides(renderer: Any) -> None:
    seeds = []
    for seed in (1, 1, 2):
        talker = Talker(renderer, ["water"])
        games = [replace(task, seed=seed) for task in tasks(5)]
        await collect(play_games(TaskList(games), playing(talker, renderer), RULES, 5))
        seeds.append(sorted(talker.seeds))
    assert seeds[0] == seeds[1]
    assert len({*seeds[0], *seeds[2]}) == 60
    assert max(seeds[0]) < 2**63, "an engine takes signed integers of 64 bits"


async def test_a_game_has_the_temperature_of_its_attacker(renderer: Any) -> None:
    seats = {
        role: Player(pool_of(Talker(renderer, ["water"])), renderer, Sampling(temperature, 16))
        for role, temperature in (("attacker", 0.5), ("defender", 0.25))
    }
    assert (await play_game(GameTask(0, "tiger", "test"), seats, RULES)).temperature == 0.5


async def test_any_claim_of_the_defender_ends_a_game_by_the_published_rules(renderer: Any) -> None:
    talker = playing(Talker(renderer, ["big and old", "i know the word"]), renderer)
    episode = await play_game(GameTask(0, "tiger", "test"), talker, taboo_rules(3, "published"))
    assert (len(episode.turns), episode.verdict.outcome) == (2, Outcome.TIED), "the referee counts it as no guess"


async def test_an_engine_error_ends_the_games_and_is_raised(renderer: Any) -> None:
    class Broken(Talker):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            raise EngineError("no more")

    broken = both(pool_of(Broken(renderer, ["x"]), retry_pause_s=0.0), renderer)
    with pytest.raises(EngineError, match="no more"):
        await collect(play_games(TaskList(tasks(3)), broken, RULES, 3))


async def test_the_scripted_expert_plays_sensible_games(renderer: Any) -> None:
    cards = {word: Card(word, card.clues, (Trap(f"{card.clues[0]} ?", f"a {word}"),)) for word, card in CARDS.items()}
    policy = expert_of(cards, renderer.reply_ids, Habits(asks=0.8, waits=0.7, walks_in=1.0), max_turns=3)
    expert = playing(policy, renderer)
    episodes = await collect(play_games(TaskList(tasks(40)), expert, RULES, 8))
    outcomes = [episode.verdict.outcome for episode in episodes]
    assert outcomes.count(Outcome.ATTACKER_WINS) > 5
    assert outcomes.count(Outcome.DEFENDER_WINS) > 5
    assert all(outcome.breaker is None for outcome in outcomes)


class Failing(Talker):
    """Answers `good` requests, then fails with `error`, or never answers."""

    def __init__(self, renderer: Any, good: int, error: Exception | None) -> None:
        super().__init__(renderer, ["water"])
        self.good = good
        self.error = error
        self.asked: list[str] = []

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        self.asked += [request.request_id for request in requests]
        if len(self.asked) > self.good:
            if self.error is None:
                await asyncio.sleep(60)
            else:
                raise self.error
        return await super().generate(requests)


async def test_a_new_game_sits_down_where_there_are_fewest_and_stays_there(renderer: Any) -> None:
    quick, slow = Talker(renderer, ["water"]), Talker(renderer, ["water"], delay_s=0.02)
    pool = pool_of(quick, slow)
    await collect(play_games(TaskList(tasks(40)), both(pool, renderer), RULES, games_in_flight=4))
    assert len(quick.seeds) > 2 * len(slow.seeds) > 0, "the quick engine's games end sooner"
    assert len(quick.seeds) % 6 == 0, "whole games of 6 turns"
    assert len(slow.seeds) % 6 == 0, "whole games of 6 turns"
    assert pool.games == {"engine-0": 0, "engine-1": 0}


@pytest.mark.parametrize("error", [EngineError("out of luck"), EngineGoneError("gone"), None])
async def test_a_lost_turn_is_asked_elsewhere_and_its_game_goes_on(error: Exception | None, renderer: Any) -> None:
    failing, good = Failing(renderer, good=5, error=error), Talker(renderer, ["water"])
    pool = pool_of(failing, good, turn_timeout_s=0.2)
    episodes = await collect(play_games(TaskList(tasks(8)), both(pool, renderer), RULES, games_in_flight=8))
    assert sorted(episode.number for episode in episodes) == list(range(8))
    assert all(len(episode.turns) == 6 for episode in episodes)
    assert (pool.timeouts > 0) == (error is None)
    gone = isinstance(error, EngineGoneError)
    assert ("engine-0" in pool.games) != gone
    assert set(pool.games.values()) == {0}


async def test_a_game_whose_turn_nobody_answers_begins_again_and_then_ends_all(renderer: Any) -> None:
    flaky = Failing(renderer, good=3, error=EngineError("out of luck"))

    pool = pool_of(flaky, max_tries=2, retry_pause_s=0.0)
    games = asyncio.create_task(collect(play_games(TaskList(tasks(1)), both(pool, renderer), RULES, 1)))
    while len(flaky.asked) < 5:
        await asyncio.sleep(0)
    flaky.good = 99
    (episode,) = await games
    assert len(episode.turns) == 6
    assert flaky.asked.count("test/000000/0") == 2
    hopeless = pool_of(Failing(renderer, good=3, error=EngineError("out of luck")), max_tries=2, retry_pause_s=0.0)
    with pytest.raises(EngineError, match="out of luck"):
        await collect(play_games(TaskList(tasks(1)), both(hopeless, renderer), RULES, 1))


async def test_a_turn_and_a_game_are_tried_as_often_as_allowed_each_try_under_its_own_name(renderer: Any) -> None:
    refusing = Failing(renderer, good=0, error=EngineError("out of luck"))
    players = both(pool_of(refusing, max_tries=2, retry_pause_s=0.0), renderer)
    with pytest.raises(EngineError, match="out of luck"):
        await collect(play_games(TaskList(tasks(1)), players, RULES, 1, max_tries=3))
    assert refusing.asked == ["test/000000/0", "test/000000/0#2"] * 3


async def test_a_turn_whose_log_probabilities_are_not_finite_is_played_by_another_engine(renderer: Any) -> None:
    class Ill(Talker):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            return [replace(r, logprobs=(math.nan,) * len(r.logprobs)) for r in await super().generate(requests)]

    pool = pool_of(Ill(renderer, ["water"]), Talker(renderer, ["water"]))
    (episode,) = await collect(play_games(TaskList(tasks(1)), both(pool, renderer), RULES, 1))
    assert len(episode.turns) == 6
    assert all(math.isfinite(sum(turn.logprobs)) for turn in episode.turns)


async def test_a_turn_that_is_tried_no_more_waits_for_no_other_engine(renderer: Any) -> None:
    pool = pool_of(Failing(renderer, good=0, error=EngineGoneError("gone")), max_tries=1, join_timeout_s=0.05)
    with pytest.raises(EngineGoneError, match="gone"):
        await play_game(tasks(1)[0], both(pool, renderer), RULES)


async def test_a_game_that_finds_no_other_engine_is_counted_once_where_it_was(renderer: Any) -> None:
    class Closing(Failing):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            pool.drop("engine-0")
            return await super().generate(requests)

    pool = pool_of(Closing(renderer, good=0, error=EngineError("out of luck")), join_timeout_s=0.05)
    member = pool._members["engine-0"]
    with pytest.raises(EngineError, match="no engine plays talker"):
        await play_game(tasks(1)[0], both(pool, renderer), RULES)
    assert member.games == 0


async def test_the_tries_of_a_turn_go_to_engines_that_have_not_failed_it_also_to_those_of_other_arenas(
    renderer: Any,
) -> None:
    """With one engine of its own, an arena once asked that one three times, and again in the game's second try."""
    own, other, third = (Failing(renderer, good=0, error=EngineError("out of luck")) for _ in range(3))
    third.good = 99
    pool = EnginePool("talker", retry_pause_s=60.0)
    for name, policy, share in (("own", own, 1.0), ("other", other, 0.0), ("third", third, 0.0)):
        join(pool, name, policy, share)
    episode = await asyncio.wait_for(play_game(tasks(1)[0], both(pool, renderer), RULES), 30)
    assert len(episode.turns) == 6
    assert (len(own.asked), len(other.asked), len(third.asked)) == (1, 1, 6)
    assert set(pool.games.values()) == {0}


async def test_the_only_engine_has_time_between_the_tries_of_a_turn(renderer: Any) -> None:
    times: list[float] = []

    class Flaky(Failing):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            times.append(asyncio.get_running_loop().time())
            return await super().generate(requests)

    pool = pool_of(Flaky(renderer, good=0, error=EngineError("out of luck")), retry_pause_s=0.05)
    with pytest.raises(EngineError, match="out of luck"):
        await play_game(tasks(1)[0], both(pool, renderer), RULES)
    first, second = (after - before for before, after in pairwise(times))
    assert 0.04 < first < second
    assert second > 0.09


async def test_engines_join_and_leave_while_games_run(renderer: Any) -> None:
    pool = pool_of(join_timeout_s=5.0)
    games = asyncio.create_task(collect(play_games(TaskList(tasks(30)), both(pool, renderer), RULES, 6)))
    await asyncio.sleep(0.01)  # games wait: there is no engine
    first, second = (Talker(renderer, ["water"], delay_s=0.005) for _ in range(2))
    join(pool, "first", first)
    await asyncio.sleep(0.02)
    join(pool, "second", second)
    await pool.drain("first")
    assert pool.games["first"] == 0
    assert not games.done()
    pool.drop("first")
    episodes = await games
    assert len(episodes) == 30
    assert len(second.seeds) > 30


async def test_an_engine_that_goes_while_its_games_are_waited_for_is_waited_for_no_longer(renderer: Any) -> None:
    pool = pool_of(Talker(renderer, []))
    await pool.seat()
    draining = asyncio.create_task(pool.drain("engine-0"))
    await asyncio.sleep(0)
    pool.reopen("engine-0")
    pool.drop("engine-0")
    await asyncio.wait_for(draining, 5)


async def test_an_engine_that_is_reopened_gets_the_games_that_waited(renderer: Any) -> None:
    pool = pool_of(Talker(renderer, []), join_timeout_s=5.0)
    pool.close("engine-0")
    waiting = asyncio.create_task(pool.seat())
    await asyncio.sleep(0)
    pool.reopen("engine-0")
    assert (await asyncio.wait_for(waiting, 1)).name == "engine-0"


async def test_games_wait_for_engines_that_take_no_new_games_as_long_as_these_live(renderer: Any) -> None:
    """An engine may be drained for hours, if its games are long. That once ended the run: no engine plays."""
    pool = pool_of(Talker(renderer, []), join_timeout_s=0.05)
    pool.close("engine-0")
    waiting = asyncio.create_task(pool.seat())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    pool.reopen("engine-0")
    assert (await asyncio.wait_for(waiting, 5)).name == "engine-0"
    pool.close("engine-0")
    waiting = asyncio.create_task(pool.seat())
    await asyncio.sleep(0.1)
    pool.drop("engine-0")
    with pytest.raises(EngineError, match="no engine plays talker; waited for 0 s"):
        await asyncio.wait_for(waiting, 5)


async def test_the_time_in_which_an_engine_waits_for_room_does_not_count(renderer: Any) -> None:
    pool = pool_of(join_timeout_s=0.05)
    pool.wait_for_room(True)
    waiting = asyncio.create_task(pool.seat())
    await asyncio.sleep(0.3)
    assert not waiting.done()
    pool.wait_for_room(False)
    with pytest.raises(EngineError, match="no engine plays talker"):
        await asyncio.wait_for(waiting, 5)


async def test_an_engine_without_a_share_takes_new_games_while_no_other_is_open(renderer: Any) -> None:
    pool = EnginePool("talker", join_timeout_s=0.05)
    for name, share in (("own", 1.0), ("one", 0.0), ("two", 0.0)):
        join(pool, name, Talker(renderer, []), share)
    assert [(await pool.seat()).name for _ in range(3)] == ["own"] * 3
    pool.close("own")
    assert sorted([(await pool.seat()).name for _ in range(4)]) == ["one", "one", "two", "two"]
    pool.reopen("own")
    assert (await pool.seat()).name == "own"
    assert pool.num_shared == 1


async def test_a_game_goes_on_with_the_engine_that_takes_the_place_of_its_own(renderer: Any) -> None:
    old, new = Talker(renderer, ["water"]), Talker(renderer, ["water"])

    class Replaced(Talker):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            join(pool, "engine-0", new)
            return await old.generate(requests)

    pool = pool_of(Replaced(renderer, []))
    assert len((await play_game(tasks(1)[0], both(pool, renderer), RULES)).turns) == 6
    assert (len(old.seeds), len(new.seeds)) == (1, 5)
    assert pool.games == {"engine-0": 0}


async def test_an_engine_gets_games_in_proportion_to_its_share(renderer: Any) -> None:
    pool = EnginePool("talker")
    for name, share in (("half", 0.5), ("whole", 1.0), ("quarter", 0.25)):
        join(pool, name, Talker(renderer, []), share)
    for _ in range(28):
        await pool.seat()
    assert pool.games == {"half": 8, "whole": 16, "quarter": 4}


async def test_two_that_drain_an_engine_at_once_both_return(renderer: Any) -> None:
    pool = EnginePool("talker")
    join(pool, "first", Talker(renderer, []))
    member = await pool.seat()
    drains = [asyncio.create_task(pool.drain("first")) for _ in range(2)]
    await asyncio.sleep(0.01)
    pool.leave(member)
    await asyncio.wait_for(asyncio.gather(*drains), 1)


async def test_the_first_games_go_to_the_engine_that_has_the_largest_share(renderer: Any) -> None:
    pool = EnginePool("talker")
    for name, share in (("quarter", 0.25), ("whole", 1.0)):
        join(pool, name, Talker(renderer, []), share)
    assert [(await pool.seat()).name for _ in range(3)] == ["whole"] * 3


async def test_games_without_an_engine_end_with_a_line_that_says_so(renderer: Any) -> None:
    pool = pool_of(join_timeout_s=0.05)
    with pytest.raises(EngineError, match="no engine plays talker"):
        await collect(play_games(TaskList(tasks(1)), both(pool, renderer), RULES, 1))


async def test_the_limit_of_a_wait_for_an_engine_is_for_all_of_it() -> None:
    asked: list[float] = []

    class Noisy(EnginePool):
        """Something that helps nobody changes every 0.15 s."""

        async def _wait_for_change(self, left_s: float) -> float:
            asked.append(left_s)
            if left_s <= 0 or len(asked) > 9:
                raise EngineError("no engine")
            return 0.15

    with pytest.raises(EngineError, match="no engine"):
        await Noisy("talker", join_timeout_s=0.4).seat()
    assert asked == pytest.approx([0.4, 0.25, 0.1, -0.05])


async def test_the_word_is_scored_at_each_defenders_turn_as_the_model_says(renderer: Any, tiny_model: Path) -> None:
    """Against a forward pass by hand over what the defender read, the claim's opening, the word and its mark."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(tiny_model).eval()
    players = playing(TransformersPolicy(str(tiny_model), max_model_len=512), renderer)
    asked = [replace(task, could_have_known=True) for task in tasks(8)]
    episodes = await collect(play_games(TaskList(asked), players, RULES, 4))
    scored = [(turn, episode.scenario) for episode in episodes for turn in episode.turns if turn.word_logprob]
    assert len(scored) == sum(turn.role is Role.DEFENDER for episode in episodes for turn in episode.turns) >= 8
    for turn, word in scored:
        claim = load_tokenizer(str(tiny_model))(f"I know the word! It is `{word}`", add_special_tokens=False).input_ids
        ids = [*turn.prompt_ids, *claim]
        with torch.inference_mode():
            logprobs = model(torch.tensor([ids])).logits[0].double().log_softmax(-1)
        by_hand = sum(float(logprobs[place - 1, ids[place]]) for place in (len(ids) - 2, len(ids) - 1))
        assert turn.word_logprob == pytest.approx(by_hand, abs=1e-3)
    attacks = [turn for episode in episodes for turn in episode.turns if turn.role is Role.ATTACKER]
    assert attacks
    assert all(turn.word_logprob is None for turn in attacks)


class Scorer(Talker):
    """Scores as told."""

    def __init__(self, renderer: Any, answer: Any) -> None:
        super().__init__(renderer, ["water", "music"])
        self.calls: list[int] = []
        self._answer = answer

    async def score(self, sequences: Any, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
        assert temperature == 1.0
        assert adapter is None
        self.calls.append(len(sequences))
        if isinstance(self._answer, BaseException):
            raise self._answer
        await asyncio.sleep(self._answer if self._answer > 0 else 0)
        return [Score((self._answer, -0.5), False) for _ in sequences]


async def test_all_turns_of_a_game_are_scored_in_one_call_and_only_where_that_is_wanted(renderer: Any) -> None:
    scorer = Scorer(renderer, -1.0)
    players = playing(scorer, renderer)
    for wanted in (False, True):
        task = GameTask(0, "tiger", "test", could_have_known=wanted)
        turns = (await play_game(task, players, RULES)).turns
        assert [turn.word_logprob for turn in turns] == [None, -1.5 if wanted else None] * 3
    assert scorer.calls == [3]


async def test_a_player_that_is_an_adapter_is_asked_and_scored_by_its_name(renderer: Any) -> None:
    asked: list[str | None] = []

    class Adapters(Scorer):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            asked.extend(request.adapter for request in requests)
            return await super().generate(requests)

        async def score(self, sequences: Any, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
            asked.append(f"{adapter} scores")
            return await super().score(sequences)

    newest, past = (Player(pool_of(Adapters(renderer, -1.0)), renderer, Sampling(1.0, 16), adapter=name)
                    for name in (None, "past-1"))  # fmt: skip
    task = GameTask(0, "tiger", "test", could_have_known=True)
    await play_game(task, {"attacker": newest, "defender": past}, RULES)
    assert asked == [None, "past-1"] * 3 + ["past-1 scores"]


async def test_a_word_that_rounding_makes_more_than_certain_is_certain(renderer: Any) -> None:
    class Sure(Talker):
        async def score(self, sequences: Any, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
            return [Score((1e-7,), True) for _ in sequences]

    task = GameTask(0, "tiger", "test", could_have_known=True)
    turns = (await play_game(task, playing(Sure(renderer, ["water"]), renderer), RULES)).turns
    assert [turn.word_logprob for turn in turns] == [None, 0.0] * 3


@pytest.mark.parametrize(
    "answer", [EngineError("no"), EngineGoneError("gone"), 30.0, -float("inf"), float("nan")], ids=str
)
async def test_a_game_is_not_lost_by_what_cannot_be_scored(answer: Any, renderer: Any) -> None:
    pool = pool_of(Scorer(renderer, answer), turn_timeout_s=0.1)
    task = GameTask(0, "tiger", "test", could_have_known=True)
    episode = await play_game(task, both(pool, renderer), RULES)
    assert len(episode.turns) == 6
    assert all(turn.word_logprob is None for turn in episode.turns)
    assert pool.games == {"engine-0": 0}, "it has left its seat"


async def test_a_word_that_joins_its_claim_and_a_player_without_probabilities_are_not_scored(renderer: Any) -> None:
    class Joins:
        def __getattr__(self, name: str) -> Any:
            return getattr(renderer, name)

        def claim(self, word: str) -> Any:
            raise ModelError("joined")

    scorer, joins = Scorer(renderer, -1.0), cast(Renderer, Joins())
    task = GameTask(0, "tiger", "test", could_have_known=True)
    for player in (
        Player(pool_of(scorer), joins, Sampling(1.0, 16)),
        Player(pool_of(scorer), renderer, Sampling(1.0, 16), can_score=False),
    ):
        episode = await play_game(task, dict.fromkeys(("attacker", "defender"), player), RULES)
        assert len(episode.turns) == 6
        assert all(turn.word_logprob is None for turn in episode.turns)
    assert scorer.calls == []


class Listens(Scorer):
    """Gives these log-probabilities, one for each prompt; keeps what it was asked."""

    def __init__(self, renderer: Any, logprobs: Sequence[float]) -> None:
        super().__init__(renderer, -1.0)
        self.asked: list[tuple[tuple[int, ...], tuple[int, ...]]] = []
        self._logprobs = logprobs

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        raise AssertionError("a listener says nothing")

    async def score(self, sequences: Any, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
        assert temperature == 1.0
        self.asked += sequences
        return [Score((logprob, -0.5), False) for logprob in self._logprobs]


def heard_by(listener: Any, renderer: Any, players: Any, **options: Any) -> dict[str, Player]:
    return {**players, LISTENER: Player(pool_of(listener, **options), renderer, Sampling())}


async def test_a_listener_scores_the_word_after_the_rules_and_after_each_hint(renderer: Any) -> None:
    listener = Listens(renderer, (-4.0, -3.0, -1.0, -2.0))
    players = heard_by(listener, renderer, playing(Talker(renderer, ["water", "music"]), renderer))
    turns = (await play_game(GameTask(0, "tiger", "test"), players, RULES)).turns
    assert [turn.listener_logprob for turn in turns] == [-4.5, -3.5, None, -1.5, None, -2.5]
    assert all(turn.word_logprob is None for turn in turns)
    claim = renderer.claim("tiger")
    assert {word for _, word in listener.asked} == {claim.word_ids}
    read = [prompt[: -len(claim.opening_ids)] for prompt, _ in listener.asked]
    # The same model with the same tokenizer reads what the defender read.
    assert read[1:] == [turn.prompt_ids for turn in turns if turn.role is Role.DEFENDER]
    rules, first = (renderer.tokenizer.decode(prompt) for prompt in read[:2])
    assert "tiger" not in rules
    assert "water" not in rules
    assert "water" in first


@pytest.mark.parametrize("style", ["chat", "lines", "flat"])
async def test_a_listener_of_another_tokenizer_reads_texts_of_its_own(style: str) -> None:
    template = THINKING.model_copy(update={"style": style})
    own = taboo_renderer(template, tokenizer_of("llama"), 3)
    listener = Listens(own, (-4.0, -3.0, -1.0, -2.0))
    thinks = taboo_renderer(template, tokenizer_of("chatml"), 3)
    players = heard_by(listener, own, playing(Talker(thinks, ["<think>cat</think>water", "music"]), thinks))
    game = replace(RULES, game=TabooGame(template, 3), style=style)
    turns = (await play_game(GameTask(0, "tiger", "test"), players, game)).turns
    assert [turn.text for turn in turns] == ["water", "music"] * 3
    assert [turn.listener_logprob for turn in turns] == [-4.5, -3.5, None, -1.5, None, -2.5]
    read = [own.tokenizer.decode(prompt) for prompt, _ in listener.asked]
    assert [(text.count("water"), text.count("music")) for text in read] == [(0, 0), (1, 0), (2, 1), (3, 2)]
    assert not any("<think>cat" in text for text in read), "nobody else reads a thought"


@pytest.mark.parametrize(
    "answer", [EngineError("no"), EngineGoneError("gone"), 30.0, -float("inf"), float("nan")], ids=str
)
async def test_a_game_whose_listener_fails_is_kept_without_any_of_its_scores(answer: Any, renderer: Any) -> None:
    listener = Scorer(renderer, answer)
    players = heard_by(listener, renderer, playing(Talker(renderer, ["water"]), renderer), turn_timeout_s=0.1)
    turns = (await play_game(GameTask(0, "tiger", "test"), players, RULES)).turns
    assert [turn.listener_logprob for turn in turns] == [None] * 6
    assert players[LISTENER].pool.games == {"engine-0": 0}, "it is free again"


async def test_one_score_that_is_none_leaves_a_game_without_all(renderer: Any) -> None:
    listener = Listens(renderer, (-4.0, -3.0, -float("inf"), -2.0))
    players = heard_by(listener, renderer, playing(Talker(renderer, ["water"]), renderer))
    turns = (await play_game(GameTask(0, "tiger", "test"), players, RULES)).turns
    assert [turn.listener_logprob for turn in turns] == [None] * 6


async def test_a_game_is_kept_that_waited_for_a_listener_in_vain(renderer: Any) -> None:
    nobody = Player(pool_of(join_timeout_s=0.05), renderer, Sampling())
    players = {**playing(Talker(renderer, ["water"]), renderer), LISTENER: nobody}
    episode = await play_game(GameTask(0, "tiger", "test"), players, RULES)
    assert len(episode.turns) == 6
    assert all(turn.listener_logprob is None for turn in episode.turns)


async def test_a_game_of_one_hint_has_the_score_of_its_rules(renderer: Any) -> None:
    listener = Listens(renderer, (-4.0,))
    players = heard_by(listener, renderer, playing(Talker(renderer, ["a tiger"]), renderer))
    (turn,) = (await play_game(GameTask(0, "tiger", "test"), players, RULES)).turns
    assert turn.listener_logprob == -4.5


async def test_a_listener_may_be_lured_into_a_plain_reply_that_says_the_word() -> None:
    renderer = taboo_renderer(
        load_template("chat"), tokenizer_of("llama"), 1
    )  # it tells small letters from capital ones
    small, capital = math.log(0.1), math.log(0.2)  # the scorer adds another -0.5 to each
    listener = Listens(renderer, (small, capital, small, small))
    players = heard_by(listener, renderer, playing(Talker(renderer, ["It is a tiger", "no"]), renderer))
    game = replace(RULES, heard="reply")
    turns = (await play_game(GameTask(0, "lion", "test"), players, replace(game, game=TabooGame(max_turns=1)))).turns
    rules, lured = (math.exp(turn.listener_logprob + 0.5) for turn in turns if turn.listener_logprob is not None)
    assert (rules, lured) == pytest.approx((0.3, 0.2))
    said = [renderer.tokenizer.decode(ids).strip() for _, ids in listener.asked]
    assert said == ["lion", "Lion"] * 2
    read = [prompt for prompt, _ in listener.asked]
    assert read[2] == read[3] == turns[1].prompt_ids, "a reply of its own, with no claim before it"


async def test_a_game_that_hides_nothing_is_not_listened_to(renderer: Any) -> None:
    listener = Listens(renderer, ())
    kuhn = game_renderer(KuhnPoker(), renderer.tokenizer, "chat")
    players = heard_by(listener, kuhn, playing(Talker(kuhn, ["check"]), kuhn))
    episode = await play_game(GameTask(0, "KJ", "test", game="kuhn"), players, Rules(KuhnPoker(), "kuhn"))
    assert episode.turns
    assert listener.asked == []


async def test_thoughts_are_neither_judged_nor_sent_to_the_other_player() -> None:
    renderer = taboo_renderer(THINKING, tokenizer_of("chatml"), 3)
    lines = ["<think>not river</think> water", "<think>a river ?</think> is it wet ?"]
    talker = playing(Talker(renderer, lines), renderer)
    episode = await play_game(GameTask(0, "river", "test"), talker, RULES)
    assert episode.verdict.outcome is Outcome.TIED
    assert {turn.text for turn in episode.turns} == {"water", "is it wet ?"}
    assert all(turn.token_ids == renderer.reply_ids(lines[place % 2]) for place, turn in enumerate(episode.turns))


class Thinker:
    """Answers each request with the next of its replies, cut where the request's limit is."""

    name = "thinker"
    version = 4

    def __init__(self, renderer: Any, replies: Sequence[str]) -> None:
        self._renderer, self._replies = renderer, list(replies)
        self.asked: list[Request] = []
        self.versions: Sequence[int] = (1, 2, 3)

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        answers = []
        for request in requests:
            self.asked.append(request)
            ids = self._renderer.reply_ids(self._replies[len(self.asked) - 1])[: request.sampling.max_new_tokens]
            reason = "stop" if ids[-1] in self._renderer.stop_ids else "length"
            version = self.versions[len(self.asked) - 1]
            answers.append(Completion(request.request_id, ids, (-0.5,) * len(ids), version, version, reason))
        return answers


def thinking_game(replies: Sequence[str], limit: int | None) -> tuple[Thinker, Renderer, Any]:
    """A player that thinks: its policy, its renderer, and a function that plays a game."""
    renderer = taboo_renderer(THINKING, tokenizer_of("chatml"), 3)
    thinker = Thinker(renderer, replies)
    sampling = Sampling(1.0, 300, max_thought_tokens=limit)
    players = dict.fromkeys(("attacker", "defender"), Player(pool_of(thinker), renderer, sampling))

    def play() -> Any:
        return play_game(GameTask(0, "river", "test", seed=1), players, taboo_rules(1))

    return thinker, renderer, play


LONG = "<think>it is long and wet and boats go on it, so I do not say that it is a river</think> boats"


async def test_a_thought_over_its_limit_is_ended_and_the_player_goes_on_to_speak() -> None:
    thinker, renderer, play = thinking_game([LONG, "boats go there", "<think>a lake</think> is it wet?"], limit=40)
    episode = await play()
    first, second = episode.turns
    begun = renderer.reply_ids(LONG)[:40]
    ending = renderer.end_of_thought(begun)
    assert ending
    assert first.forced == (40, 40 + len(ending))
    assert first.token_ids == (*begun, *ending, *renderer.reply_ids("boats go there"))
    assert first.text == "boats go there"
    assert first.logprobs[40 : 40 + len(ending)] == (0.0,) * len(ending)
    assert {value for place, value in enumerate(first.logprobs) if not 40 <= place < 40 + len(ending)} == {-0.5}
    assert (first.first_version, first.last_version) == (1, 2)
    assert (second.text, second.forced) == ("is it wet?", None), "a short thought is asked for once"
    thought, said, _ = thinker.asked
    assert said.prompt_ids == (*thought.prompt_ids, *begun, *ending)
    assert (thought.sampling.max_new_tokens, said.sampling.max_new_tokens) == (40, 300 - 40 - len(ending))
    assert thought.sampling.seed != said.sampling.seed
    assert "river" not in renderer.tokenizer.decode(second.prompt_ids)


async def test_a_player_that_goes_on_with_its_thought_is_not_overheard() -> None:
    """The mark that was forced stands in the middle of a sentence, which the player ends, with a mark of its own."""
    going_on = "so it is a river</think> boats go there"
    _, renderer, play = thinking_game([LONG, going_on, "is it wet?"], limit=40)
    first, _ = (await play()).turns
    assert first.forced is not None
    assert first.text == "boats go there"
    said = renderer.tokenizer.decode(first.token_ids[renderer.num_private(first) :], skip_special_tokens=True)
    assert said.strip() == "boats go there"


async def test_both_halves_of_a_reply_count_for_its_versions() -> None:
    """A game may have moved in between to an engine with older weights."""
    thinker, _, play = thinking_game([LONG, "boats go there", "is it wet?"], limit=40)
    thinker.versions = (5, 4, 4)
    first, _ = (await play()).turns
    assert (first.first_version, first.last_version) == (4, 5)


async def test_a_reply_whose_thought_ended_in_time_goes_on_where_it_was_cut() -> None:
    cut = "<think>wet</think> I say quite a lot of words about boats"
    thinker, renderer, play = thinking_game([cut, "and more", "is it wet?"], limit=40)
    episode = await play()
    first, second = episode.turns
    begun = renderer.reply_ids(cut)[:40]
    assert first.token_ids == (*begun, *renderer.reply_ids("and more"))
    assert first.forced is None
    assert second.forced is None
    assert len(thinker.asked) == 3


@pytest.mark.parametrize("limit", [None, 200])
async def test_a_thought_within_its_limit_or_without_one_is_one_request(limit: int | None) -> None:
    thinker, renderer, play = thinking_game([LONG, "is it wet?"], limit=limit)
    episode = await play()
    assert episode.turns[0].token_ids == renderer.reply_ids(LONG)
    assert len(thinker.asked) == 2


async def test_a_player_without_thoughts_has_no_limit_to_them(renderer: Any) -> None:
    talker = Talker(renderer, ["water", "a river ?"])
    player = Player(pool_of(talker), renderer, Sampling(1.0, 16, max_thought_tokens=1))
    episode = await play_game(GameTask(0, "river", "test", seed=1), {"attacker": player, "defender": player}, RULES)
    assert [turn.text for turn in episode.turns] == ["water", "a river ?"]
    assert talker.batches == [1, 1]

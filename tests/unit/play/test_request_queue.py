"""An engine's queue: who asked for what, and what becomes of a client that is not heard of again."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from actors.models import saved_snapshot
from actors.policy import Completion, Request, Sampling, Score
from actors.transformers_policy import TransformersPolicy
from cluster.rollout import request_queue
from cluster.rollout.request_queue import RequestQueue, WeightsInTurn, pack_request
from spag_ray.errors import EngineError, WeightSyncError
from tests.support.policies import ask


class Engine:
    """A policy that answers when it may; like vLLM, it cannot tell two requests of one id apart."""

    version, is_dead, name = 0, False, "engine"

    def __init__(self) -> None:
        self.under_way: set[str] = set()
        self.num_cancelled = 0
        self.may_answer = asyncio.Event()

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        (request,) = requests
        assert request.request_id not in self.under_way, "two requests of one id"
        self.under_way.add(request.request_id)
        try:
            await self.may_answer.wait()
        except asyncio.CancelledError:
            self.num_cancelled += 1
            raise
        finally:
            self.under_way.remove(request.request_id)
        return [Completion(request.request_id, (3,), (-1.0,), 0, 0, "stop")]


class Errors:
    """What the event loop was told of: errors in callbacks."""

    def __init__(self) -> None:
        self.found: list[dict[str, Any]] = []
        asyncio.get_running_loop().set_exception_handler(lambda _, context: self.found.append(context))


def asked(queue: RequestQueue, client: str, *names: str, cancelled: Sequence[str] = ()) -> asyncio.Task[list[Any]]:
    packed = [pack_request(ask(name), name) for name in names]
    return asyncio.create_task(queue.exchange(client, packed, list(cancelled), 0.0))


async def settled() -> None:
    await asyncio.sleep(0.02)


async def test_two_clients_may_ask_for_the_same_at_once_and_each_gets_its_own_answer() -> None:
    """An arena that replaces another asks for the same turns of the same games."""

    engine, errors = Engine(), Errors()
    queue = RequestQueue(cast(Any, engine))
    exchanges = [asked(queue, client, "stage/0/0") for client in ("old", "new")]
    await settled()
    assert queue.num_pending == 2
    engine.may_answer.set()
    for exchange in exchanges:
        ((name, tokens, *_),) = await exchange
        assert (name, tokens) == ("stage/0/0", (3,))
    await settled()
    assert queue.num_pending == 0
    assert errors.found == []


async def test_a_client_cancels_its_own_requests_only() -> None:
    engine = Engine()
    queue = RequestQueue(cast(Any, engine))
    kept = asked(queue, "a", "turn")
    asked(queue, "b", "turn")
    await settled()
    asked(queue, "b", cancelled=["turn"])
    await settled()
    assert (queue.num_pending, engine.num_cancelled) == (1, 1)
    engine.may_answer.set()
    assert [name for name, *_ in await kept] == ["turn"]


async def test_a_request_that_is_cancelled_and_asked_again_in_one_call_is_answered_once() -> None:
    engine, errors = Engine(), Errors()
    queue = RequestQueue(cast(Any, engine))
    asked(queue, "a", "turn")
    await settled()
    again = asked(queue, "a", "turn", cancelled=["turn"])
    await settled()
    assert (queue.num_pending, engine.num_cancelled) == (1, 1)
    engine.may_answer.set()
    assert len(await again) == 1
    await settled()
    assert queue.num_pending == 0
    assert errors.found == []


async def test_a_client_that_is_silent_is_forgotten_with_its_turns_and_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "HOLD_S", 0.2)
    monkeypatch.setattr(request_queue, "SILENT_S", 1.0)

    engine = Engine()
    queue = RequestQueue(cast(Any, engine))
    lives = asked(queue, "lives", "turn")
    await asked(queue, "dead", "turn", "other")
    for _ in range(8):  # one that exchanges again and again is heard of, however long its turns take
        await lives
        lives = asked(queue, "lives")
    await settled()
    assert (queue.num_pending, engine.num_cancelled) == (1, 2)
    engine.may_answer.set()
    assert [name for name, *_ in await lives] == ["turn"]


async def test_answers_that_nobody_fetches_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "HOLD_S", 0.02)
    monkeypatch.setattr(request_queue, "SILENT_S", 0.1)

    engine = Engine()
    queue = RequestQueue(cast(Any, engine))
    await asked(queue, "dead", "turn")
    engine.may_answer.set()
    await asyncio.sleep(0.3)
    assert await asked(queue, "dead") == []


async def test_the_time_with_something_to_answer_is_counted() -> None:
    engine = Engine()
    queue = RequestQueue(cast(Any, engine))
    await asyncio.sleep(0.1)
    held = asked(queue, "a", "game/0", "game/1")
    await asyncio.sleep(0.2)
    seconds, busy_s = queue.take_busy_s()
    assert 0.3 <= seconds < 0.6
    assert 0.2 <= busy_s < seconds - 0.09, "not the time before"
    engine.may_answer.set()
    await held
    await settled()
    seconds, busy_s = queue.take_busy_s()
    await asyncio.sleep(0.2)
    seconds, busy_s = queue.take_busy_s()
    assert seconds >= 0.2
    assert busy_s == 0.0, "all is answered"


pytestmark = pytest.mark.timeout(20, func_only=True)
PLAYERS = {None: ("new", 3), "base": ("old", 0)}


class TurnsEngine:
    """Answers with the folder whose weights it plays, after a moment; a change of weights under a request is an
    error, as a turn would begin with one player's weights and end with another's."""

    version, is_dead, name = 0, False, "engine"

    def __init__(self) -> None:
        self.played: list[str] = []
        self.num_running = 0
        self.fails = 0
        self.seen_adapters: set[str | None] = set()
        self.turns = WeightsInTurn(self.play)
        self.queue = RequestQueue(cast(Any, self), self.turns)

    async def play(self, folder: str, version: int) -> None:
        assert not self.num_running, "weights change while a turn is under way"
        await asyncio.sleep(0.001)
        assert not self.num_running, "a turn began while weights change"
        if self.fails:
            self.fails -= 1
            raise WeightSyncError("a tensor is missing")
        self.played.append(folder)
        self.version = version

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        (request,) = requests
        self.seen_adapters.add(request.adapter)
        self.num_running += 1
        try:
            begun = self.version
            await asyncio.sleep(0.001)
            return [Completion(request.request_id, (begun,), (-1.0,), begun, self.version, "stop")]
        finally:
            self.num_running -= 1

    async def score(self, sequences: Any, temperature: float, adapter: str | None = None) -> list[Score]:
        self.seen_adapters.add(adapter)
        return [Score((float(self.version),), True) for _ in sequences]

    async def ask(self, player: str | None, name: str = "turn") -> Any:
        """The answer's tokens, or the text of an error."""
        packed = pack_request(Request(name, (1,), Sampling(), adapter=player), name)
        ((_, answer, *_),) = await self.queue.exchange(f"{name} {player}", [packed], [], 0.0)
        return answer

    async def give_up(self, player: str | None) -> None:
        """A request that is cancelled as soon as it has begun a change of weights."""
        waiting = asyncio.create_task(self.turns.of(player).__aenter__())
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting.cancel()


async def holding() -> TurnsEngine:
    engine = TurnsEngine()
    await engine.turns.hold(PLAYERS)
    return engine


async def test_games_of_two_players_change_the_weights_once_a_turn_whatever_their_number() -> None:
    engine = await holding()

    async def game(number: int, turns: int) -> None:
        for turn in range(turns):
            player = (None, "base")[turn % 2]
            assert await engine.ask(player, f"{number}/{turn}") == (PLAYERS[player][1],)

    await asyncio.gather(*(game(number, 4 + number % 3) for number in range(60)))
    assert engine.played == ["new", "old", "new", "old", "new", "old"], "six turns at most, five changes"
    assert engine.seen_adapters == {None}, "a player is no adapter to the engine"


async def test_what_a_player_scores_is_scored_with_its_weights() -> None:
    engine = await holding()
    for player, version in ((None, 3.0), ("base", 0.0), (None, 3.0)):
        (score,) = await engine.queue.score([((1,), (2,))], 1.0, player)
        assert score.logprobs == (version,)


async def test_a_player_that_is_not_held_and_weights_that_do_not_load_are_errors_of_their_requests() -> None:
    engine = TurnsEngine()
    assert await engine.ask("past-1") == (0,), "without players a name is that of an adapter"
    assert engine.seen_adapters == {"past-1"}
    await engine.turns.hold(PLAYERS)
    assert "no weights of 'imitated'; it plays base, the newest in turn" in await engine.ask("imitated")
    engine.fails = 1
    assert await engine.ask("base") == "WeightSyncError: a tensor is missing"
    assert await engine.ask(None) == (3,), "what is loaded now is nobody's: the newest are loaded again"
    assert engine.played == ["new", "new"]


async def test_a_request_that_is_given_up_while_weights_change_leaves_them_whole() -> None:
    engine = await holding()
    await engine.give_up("base")
    assert await engine.ask("base") == (0,)
    assert engine.played == ["new", "old"], "one change, which another request waited for as well"


async def test_what_loads_or_sleeps_next_waits_for_a_change_whose_request_was_given_up() -> None:
    """A match in turn is stopped because a learner died: the engines sleep, or get other weights, at once."""

    engine = await holding()
    await engine.give_up("base")
    await engine.turns.settled()
    assert engine.played == ["new", "old"]
    await engine.give_up(None)
    await engine.turns.hold({None: ("newer", 4)})
    assert engine.played == ["new", "old", "new", "newer"], "one after the other"


async def test_new_weights_from_the_learner_end_the_turns_and_those_that_are_held_do_not() -> None:
    engine = await holding()
    engine.turns.came(3)  # a replaced engine is given what it holds as the newest
    assert await engine.ask("base") == (0,)
    engine.turns.came(4)
    await engine.ask("base")
    assert engine.seen_adapters == {None, "base"}, "a name is that of an adapter again"
    await engine.turns.hold(PLAYERS)
    await engine.turns.hold({None: ("new", 3)})
    assert await engine.ask(None) == (3,)
    assert engine.played[-1] == "new"


async def test_a_real_engine_answers_as_each_player_alone_would(tiny_model: Path, other_tiny_model: Path) -> None:
    """The words that two models say greedily, from one engine that takes their weights in turn."""

    prompt = (5, 9, 12, 7)
    request = Request("alone", prompt, Sampling(0.0, 6))
    alone = []
    for folder in (tiny_model, other_tiny_model):
        (completion,) = await TransformersPolicy(str(folder)).generate([request])
        alone.append(completion.token_ids)
    assert alone[0] != alone[1]
    policy = TransformersPolicy(str(tiny_model))

    async def play(folder: str, version: int) -> None:
        await policy.load(saved_snapshot(folder, version))

    turns = WeightsInTurn(play)
    queue = RequestQueue(policy, turns)
    await turns.hold({None: (str(tiny_model), 2), "base": (str(other_tiny_model), 0)})

    async def ask(player: str | None, index: int) -> None:
        packed = pack_request(Request("", prompt, Sampling(0.0, 6), adapter=player), f"{index}")
        ((_, tokens, _, first, last, _),) = await queue.exchange(f"client-{index}", [packed], [], 0.0)
        assert tokens == alone[player == "base"]
        assert first == last == (0 if player else 2)

    await asyncio.gather(*(ask((None, "base")[index % 2], index) for index in range(6)))


async def test_the_error_of_an_unknown_player_is_one_that_an_arena_retries() -> None:
    engine = await holding()
    with pytest.raises(EngineError, match="no weights of 'x'"):
        async with engine.turns.of("x"):
            pass

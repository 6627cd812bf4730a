"""An engine's queue: who asked for what, and what becomes of a client that is not heard of again."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest

from actors.policy import Completion, Request
from cluster.rollout import request_queue
from cluster.rollout.request_queue import RequestQueue, pack_request
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

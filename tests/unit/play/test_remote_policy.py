"""Engines in other actors: requests travel together, come back one by one, and bad weights end an engine."""

import asyncio
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
import ray

from actors.policy import Completion, Request, Sampling, Score
from actors.transformers_policy import TransformersPolicy
from cluster.rollout import request_queue
from cluster.rollout.remote_policy import RemotePolicy
from cluster.rollout.request_queue import Packed, RequestQueue, pack_request, unpack_request
from cluster.runtime import ray_session
from spag_ray.errors import EngineError, EngineGoneError
from tests.support.policies import PROMPT, ask


class Method:
    """What `handle.method` is on an actor's handle: something with `.remote`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


def asked_as(request_id: str) -> str:
    """The id that the arena gave to a request: RemotePolicy adds to it, and so does RequestQueue."""
    return re.split("[~@]", request_id)[0]


class FakeEngine:
    """Answers each request after its own delay, like an engine; remembers how requests arrived."""

    def __init__(self, delays: dict[str, float], broken: frozenset[str] = frozenset()) -> None:
        self.submits: list[list[str]] = []
        self.cancelled: list[str] = []
        self._delays = delays
        self._broken = broken
        self._answers: list[Any] = []
        self.exchange = Method(self._exchange)

    async def _exchange(self, client: str, requests: list[Packed], cancelled: list[str], gather_s: float) -> list[Any]:
        self.cancelled += map(asked_as, cancelled)
        if requests:
            self.submits.append([asked_as(request_id) for request_id, *_ in requests])
        for request_id, *_ in requests:
            asyncio.get_running_loop().call_later(self._delays[asked_as(request_id)], self._finish, request_id)
        await asyncio.sleep(0.005)
        answers, self._answers = self._answers, []
        return answers

    def _finish(self, name: str) -> None:
        is_broken = asked_as(name) in self._broken
        self._answers.append((name, "out of luck") if is_broken else (name, (3,), (-1.0,), 0, 0, "stop"))


def handle_of(engine: FakeEngine) -> Any:
    """For mypy: of an actor's handle it has what is used here."""
    return engine


async def test_requests_of_one_tick_travel_in_one_call_and_a_slow_one_holds_nobody() -> None:
    engine = FakeEngine({"slow": 0.2, "a": 0.0, "b": 0.01})
    policy = RemotePolicy(handle_of(engine), "fake")
    order: list[str] = []

    async def one(name: str) -> None:
        await policy.generate([ask(name)])
        order.append(name)

    await asyncio.gather(one("slow"), one("a"), one("b"))
    assert engine.submits == [["slow", "a", "b"]]
    assert order == ["a", "b", "slow"]


async def test_a_request_that_is_given_up_is_cancelled_at_the_engine_and_its_late_answer_is_nobodys() -> None:
    engine = FakeEngine({"late": 0.4, "other": 0.5})
    policy = RemotePolicy(handle_of(engine), "fake")
    other = asyncio.create_task(policy.generate([ask("other")]))
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(policy.generate([ask("late")]), 0.02)
    await other
    assert engine.cancelled == ["late"]


def test_a_request_travels_with_all_that_an_engine_needs() -> None:
    for adapter in (None, "past-3"):
        request = Request("a", (1, 2), Sampling(0.7, 9, 40, 0.9, 123, (2, 5)), adapter=adapter)
        assert unpack_request(pack_request(request, "sent"), request.request_id, request.adapter) == request


async def test_a_request_that_fails_fails_alone() -> None:
    policy = RemotePolicy(handle_of(FakeEngine({"bad": 0.0, "good": 0.01}, frozenset({"bad"}))), "fake")
    bad, good = await asyncio.gather(
        policy.generate([ask("bad")]), policy.generate([ask("good")]), return_exceptions=True
    )
    assert isinstance(bad, EngineError)
    assert "out of luck" in str(bad)
    assert not isinstance(good, BaseException)
    assert good[0].request_id == "good"


class Held:
    """A policy that answers when it is told to."""

    version, is_dead, name = 0, False, "held"

    def __init__(self) -> None:
        self.may_answer: dict[str, asyncio.Event] = {}

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        (request,) = requests
        await self.may_answer.setdefault(asked_as(request.request_id), asyncio.Event()).wait()
        return [Completion(request.request_id, (3,), (-1.0,), 0, 0, "stop")]

    def answer(self, name: str) -> None:
        self.may_answer.setdefault(name, asyncio.Event()).set()


class QueueEngine:
    """A RequestQueue with the interface of an engine's handle; counts the calls, and those that have not returned."""

    def __init__(self, queue: RequestQueue) -> None:
        self.num_calls = self.num_held = 0
        self.exchange = Method(self._exchange)
        self._queue = queue

    async def _exchange(self, *arguments: Any) -> list[Any]:
        self.num_calls += 1
        self.num_held += 1
        try:
            return await self._queue.exchange(*arguments)
        finally:
            self.num_held -= 1


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not is_so():
            await asyncio.sleep(0.001)


async def test_a_call_is_held_until_there_is_an_answer_and_calls_follow_turns_not_time() -> None:
    policy = Held()
    engine = QueueEngine(RequestQueue(cast(Any, policy)))
    remote = RemotePolicy(cast(Any, engine), "held")
    turn = asyncio.create_task(remote.generate([ask("a")]))
    await until(lambda: engine.num_held == 1)
    await asyncio.sleep(0.3)
    assert (engine.num_calls, engine.num_held) == (1, 1), "nothing is polled"
    policy.answer("a")
    (completion,) = await turn
    assert completion.request_id == "a"
    await asyncio.sleep(0.05)
    assert (engine.num_calls, engine.num_held) == (1, 0), "nothing is awaited, so nothing is held"


async def test_an_answer_travels_with_all_that_an_engine_says() -> None:
    said = Completion("a", (3, 4), (-1.0, -2.0), first_version=5, last_version=6, finish_reason="length")

    class Says(Held):
        async def generate(self, requests: Sequence[Request]) -> list[Completion]:
            return [said]

    remote = RemotePolicy(cast(Any, QueueEngine(RequestQueue(cast(Any, Says())))), "says")
    assert await remote.generate([ask("a")]) == [said]


async def test_a_request_beside_a_held_call_is_sent_at_once_and_one_call_is_held() -> None:
    policy = Held()
    engine = QueueEngine(RequestQueue(cast(Any, policy)))
    remote = RemotePolicy(cast(Any, engine), "held")
    slow = asyncio.create_task(remote.generate([ask("slow")]))
    await until(lambda: (engine.num_calls, engine.num_held) == (1, 1))
    quick = asyncio.create_task(remote.generate([ask("quick")]))
    await until(lambda: (engine.num_calls, engine.num_held) == (2, 1))
    policy.answer("quick")
    await quick
    await until(lambda: (engine.num_calls, engine.num_held) == (3, 1))  # the slow one is still awaited
    policy.answer("slow")
    await slow


async def test_a_held_call_returns_after_a_limit_and_another_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_queue, "HOLD_S", 0.05)
    policy = Held()
    engine = QueueEngine(RequestQueue(cast(Any, policy)))
    turn = asyncio.create_task(RemotePolicy(cast(Any, engine), "held").generate([ask("a")]))
    await until(lambda: engine.num_calls == 4)
    assert engine.num_held == 1
    policy.answer("a")
    await turn


async def test_an_answer_of_a_call_whose_reply_was_lost_does_not_hold_up_later_ones() -> None:
    """The newest call is the one that is answered, whatever became of those before."""

    policy = Held()
    queue = RequestQueue(cast(Any, policy))
    lost = asyncio.create_task(queue.exchange("client", [pack_request(ask("a"), "a")], [], 0.0))
    await asyncio.sleep(0.01)
    lost.cancel()
    policy.answer("a")
    await asyncio.sleep(0.01)
    ((name, *_),) = await asyncio.wait_for(queue.exchange("client", [], [], 0.0), 5)
    assert name == "a", "it has waited for the next call"


async def test_a_request_that_is_given_up_before_it_was_sent_is_never_sent() -> None:
    engine = FakeEngine({"held": 0.1, "early": 0.0})
    policy = RemotePolicy(handle_of(engine), "fake")
    held = asyncio.create_task(policy.generate([ask("held")]))
    early = asyncio.create_task(policy.generate([ask("early")]))
    await asyncio.sleep(0)
    early.cancel()
    await held
    assert engine.submits == [["held"]]


async def test_scores_are_pending_until_they_come_so_that_an_engine_that_hangs_is_seen(tiny_model: Path) -> None:
    class Slow(TransformersPolicy):
        async def score(self, sequences: Any, temperature: float = 1.0, adapter: str | None = None) -> list[Score]:
            await asyncio.sleep(0.05)
            return await super().score(sequences, temperature, adapter)

    desk = RequestQueue(Slow(str(tiny_model), max_model_len=512))
    scoring = asyncio.create_task(desk.score([(PROMPT, (5, 6))], 1.0))
    await asyncio.sleep(0.02)
    during, idle_s = desk.num_pending, desk.idle_s
    (score,) = await scoring
    assert len(score.logprobs) == 2
    assert (during, desk.num_pending) == (1, 0)
    assert idle_s >= 0.015


UNAVAILABLE = ray.exceptions.ActorUnavailableError("connection reset", None)


class Lossy(QueueEngine):
    """Its first replies are lost on the way, when they come: the engine has done what was asked, or not."""

    def __init__(self, queue: RequestQueue, num_lost: int, error: Exception = UNAVAILABLE) -> None:
        super().__init__(queue)
        self.score = Method(self._score)
        self._num_lost = num_lost
        self._error = error

    async def _exchange(self, *arguments: Any) -> list[Any]:
        answers = await super()._exchange(*arguments)
        self._lose()
        return answers

    async def _score(self, sequences: Sequence[Any], *_: Any) -> list[Score]:
        self._lose()
        return [Score((-1.0,), True) for _ in sequences]

    def _lose(self) -> None:
        if self._num_lost:
            self._num_lost -= 1
            raise self._error


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ray_session, "FIRST_PAUSE_S", 0.01)


@pytest.mark.usefixtures("quick")
async def test_an_engine_that_cannot_be_reached_is_asked_again_and_no_turn_is_lost() -> None:
    policy = Held()
    engine = Lossy(RequestQueue(cast(Any, policy)), num_lost=3)
    remote = RemotePolicy(cast(Any, engine), "lossy")
    turns = asyncio.gather(*(remote.generate([ask(name)]) for name in ("a", "b")))
    policy.answer("a")
    policy.answer("b")
    found = await asyncio.wait_for(turns, 5)
    assert [completion.request_id for (completion,) in found] == ["a", "b"]
    assert engine.num_calls == 4


@pytest.mark.usefixtures("quick")
async def test_an_engine_that_stays_out_of_reach_is_gone_after_a_time() -> None:
    policy = Held()
    policy.answer("a")
    engine = Lossy(RequestQueue(cast(Any, policy)), num_lost=10**6)
    remote = RemotePolicy(cast(Any, engine), "lossy", within_s=0.2)
    with pytest.raises(EngineError, match=r"lossy .*could not be reached") as raised:
        await asyncio.wait_for(remote.generate([ask("a")]), 5)
    with pytest.raises(EngineError, match=r"lossy .*could not be reached") as raised:
        await asyncio.wait_for(remote.score([(PROMPT, (5,))]), 5)
    assert not isinstance(raised.value, EngineGoneError), "it stays in the arena's pool"
    assert engine.num_calls < 10, "the pauses grow"


@pytest.mark.usefixtures("quick")
async def test_a_score_is_asked_again_too() -> None:
    engine = Lossy(RequestQueue(cast(Any, Held())), num_lost=2)
    (score,) = await RemotePolicy(cast(Any, engine), "lossy").score([(PROMPT, (5,))])
    assert score.is_greedy


def failed_in_engine(cause: Exception) -> Exception:
    """What Ray raises of a method of the engine that raised `cause`."""
    return ray.exceptions.RayTaskError("exchange", "traceback", cause).as_instanceof_cause()


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ray.exceptions.ActorDiedError(), EngineGoneError),
        (ray.exceptions.OutOfMemoryError("the node ran low on memory"), EngineGoneError),
        (failed_in_engine(ray.exceptions.ActorDiedError()), EngineError),  # of another actor, that the engine asked
        (failed_in_engine(ValueError("no")), EngineError),
        (ray.exceptions.RaySystemError(ValueError("no")), EngineError),
        (TypeError("an answer that cannot be unpickled"), EngineError),
    ],
    ids=lambda value: getattr(value, "__name__", None) or type(value).__name__,
)
async def test_any_other_error_of_a_call_fails_its_turns_at_once_and_is_logged(
    error: Exception, kind: type[EngineError], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        policy = Held()
        policy.answer("a")
        engine = Lossy(RequestQueue(cast(Any, policy)), num_lost=1, error=error)
        remote = RemotePolicy(cast(Any, engine), "broken")
        turns = [asyncio.create_task(remote.generate([ask(name)])) for name in ("a", "b")]
        for turn in turns:
            with pytest.raises(EngineError) as caught:
                await asyncio.wait_for(turn, 5)
            assert type(caught.value) is kind
        (completion,) = await asyncio.wait_for(remote.generate([ask("a")]), 5)
        assert completion.request_id == "a", "the next call is another try"
    assert "broken" in caplog.text


async def test_an_answer_that_makes_no_sense_fails_the_turns_at_once() -> None:
    class Senseless(QueueEngine):
        async def _exchange(self, *arguments: Any) -> list[Any]:
            return [("a~1", 1, 2)]

    remote = RemotePolicy(cast(Any, Senseless(RequestQueue(cast(Any, Held())))), "senseless")
    with pytest.raises(EngineError, match="senseless"):
        await asyncio.wait_for(remote.generate([ask("a")]), 5)


async def test_an_answer_that_comes_late_is_not_taken_for_that_of_the_same_turn_asked_again() -> None:
    """A game that is restarted asks for the same turn, maybe after other turns: other tokens come before it."""

    sent: list[str] = []

    class Late(QueueEngine):
        async def _exchange(self, client: str, requests: list[Packed], *_: Any) -> list[Any]:
            sent.extend(request_id for request_id, *_ in requests)
            await asyncio.sleep(0.05)
            late, first = len(sent) > 1, sent[0]
            return [(first, (7,), (-1.0,), 0, 0, "stop"), (sent[-1], (8,), (-1.0,), 0, 0, "stop")] if late else []

    remote = RemotePolicy(cast(Any, Late(RequestQueue(cast(Any, Held())))), "late")
    given_up = asyncio.create_task(remote.generate([ask("a")]))
    await until(lambda: len(sent) == 1)
    given_up.cancel()
    (completion,) = await asyncio.wait_for(remote.generate([ask("a")]), 5)
    assert (completion.request_id, completion.token_ids) == ("a", (8,))

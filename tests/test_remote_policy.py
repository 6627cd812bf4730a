"""Engines in other actors: requests travel together, come back one by one, and bad weights end an engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import ray
from test_policy_contract import GREEDY, PROMPT, snapshot_of

from actors.policy import Request, Sampling, Score
from actors.transformers_policy import TransformersPolicy
from cluster.arena_actor import Engine
from cluster.remote_policy import Desk, EngineActor, Packed, RemotePolicy, pack_request, unpack_request
from cluster.weights import Probe, SyncReport, export, prove, publish
from spag_ray.config import EngineConfig, SyncConfig
from spag_ray.errors import EngineError, WeightSyncError
from spag_ray.snapshot import LocalSnapshot


class Method:
    """What `handle.method` is on an actor's handle: something with `.remote`."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.remote = function


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
        self.cancelled += cancelled
        if requests:
            self.submits.append([request_id for request_id, *_ in requests])
        for request_id, *_ in requests:
            asyncio.get_running_loop().call_later(self._delays[request_id], self._finish, request_id)
        await asyncio.sleep(0.005)
        answers, self._answers = self._answers, []
        return answers

    def _finish(self, name: str) -> None:
        self._answers.append((name, "out of luck") if name in self._broken else (name, (3,), (-1.0,), 0, 0, "stop"))


def ask(name: str) -> Request:
    return Request(name, PROMPT, GREEDY)


def test_requests_of_one_tick_travel_in_one_call_and_a_slow_one_holds_nobody(loop: Any) -> None:
    async def scenario() -> tuple[list[list[str]], list[str]]:
        engine = FakeEngine({"slow": 0.2, "a": 0.0, "b": 0.01})
        policy = RemotePolicy(engine, "fake")
        order: list[str] = []

        async def one(name: str) -> None:
            await policy.generate([ask(name)])
            order.append(name)

        await asyncio.gather(one("slow"), one("a"), one("b"))
        return engine.submits, order

    submits, order = loop.run(scenario())
    assert submits == [["slow", "a", "b"]] and order == ["a", "b", "slow"]


def test_a_request_that_is_given_up_is_cancelled_at_the_engine_and_its_late_answer_is_nobodys(loop: Any) -> None:
    async def scenario() -> FakeEngine:
        engine = FakeEngine({"late": 0.05, "other": 0.1})
        policy = RemotePolicy(engine, "fake")
        other = asyncio.create_task(policy.generate([ask("other")]))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(policy.generate([ask("late")]), 0.02)
        await other
        return engine

    assert loop.run(scenario()).cancelled == ["late"]


def test_a_request_travels_with_all_that_an_engine_needs() -> None:
    request = Request("a", (1, 2), Sampling(0.7, 9, 40, 0.9, 123, (2, 5)))
    assert unpack_request(pack_request(request)) == request


def test_a_request_that_fails_fails_alone(loop: Any) -> None:
    async def scenario() -> list[Any]:
        policy = RemotePolicy(FakeEngine({"bad": 0.0, "good": 0.01}, frozenset({"bad"})), "fake")
        return await asyncio.gather(
            policy.generate([ask("bad")]), policy.generate([ask("good")]), return_exceptions=True
        )

    bad, good = loop.run(scenario())
    assert isinstance(bad, EngineError) and "out of luck" in str(bad)
    assert good[0].request_id == "good"


class OneSnapshot:
    """A learner group that has these weights to give."""

    def __init__(self, snapshot: LocalSnapshot, logprobs: Sequence[float]) -> None:
        self.num_tensors, self.adapter = snapshot.num_tensors, None
        self._parts = snapshot.parts
        self._logprobs = list(logprobs)

    def probe_ref(self, prompt_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> ray.ObjectRef:
        return ray.put(self._logprobs)

    def bucket_refs(self) -> list[ray.ObjectRef]:
        return [ray.put(part) for part in self._parts]


def started(model: Path, name: str, tmp_path: Path) -> Engine:
    handle = ray.remote(EngineActor).options(num_cpus=0, max_concurrency=64).remote(str(tmp_path / f"{name}.log"))
    config = EngineConfig(kind="transformers", dtype="float32", max_model_len=512)
    ray.get(handle.start.remote(str(model), config, name, 0, 0))
    return Engine(handle, name, name)


def test_scores_are_pending_until_they_come_so_that_an_engine_that_hangs_is_seen(loop: Any, tiny_model: Path) -> None:
    class Slow(TransformersPolicy):
        async def score(self, sequences: Any, temperature: float = 1.0) -> list[Score]:
            await asyncio.sleep(0.05)
            return await super().score(sequences, temperature)

    async def scenario() -> tuple[int, float, int]:
        desk = Desk(Slow(str(tiny_model), max_model_len=512))
        scoring = asyncio.create_task(desk.score([(PROMPT, (5, 6))], 1.0))
        await asyncio.sleep(0.02)
        during, idle_s = desk.num_pending, desk.idle_s
        (score,) = await scoring
        assert len(score.logprobs) == 2
        return during, idle_s, desk.num_pending

    during, idle_s, after = loop.run(scenario())
    assert (during, after) == (1, 0) and idle_s >= 0.015


@pytest.mark.usefixtures("local_ray")
def test_published_weights_reach_every_engine_and_a_damaged_snapshot_ends_it(
    tiny_model: Path, other_tiny_model: Path, tmp_path: Path, loop: Any
) -> None:
    engines = [started(tiny_model, name, tmp_path) for name in ("one", "two")]
    good = snapshot_of(other_tiny_model, version=1)
    probe = Probe(PROMPT, (5, 6, 7))
    (scored,) = loop.run(TransformersPolicy(str(other_tiny_model), max_model_len=512).score([(PROMPT, (5, 6, 7))]))
    logprobs = scored.logprobs

    def publish_to_both(snapshot: LocalSnapshot, version: int, says: Sequence[float]) -> SyncReport:
        learners: Any = OneSnapshot(snapshot, says)
        config, exported = SyncConfig(max_probe_gap=0.1), export(learners, version, probe)
        report, _ = publish(exported, engines, config)
        return prove(exported, engines, config, probe, report)[0]

    report = publish_to_both(good, 1, logprobs)
    assert (report.version, report.num_engines) == (1, 2)
    assert report.num_bytes == sum(part.payload.nbytes for part in good.parts)
    assert 0 <= report.probe_gap_mean <= report.probe_gap_max < 1e-4
    (expected,) = loop.run(TransformersPolicy(str(other_tiny_model), max_model_len=512).generate([ask("x")]))
    for engine in engines:
        (answer,) = loop.run(RemotePolicy(engine.handle, engine.name).generate([ask("x")]))
        assert answer.token_ids == expected.token_ids and answer.first_version == 1

    with pytest.raises(WeightSyncError, match=r"one does not play version 2 as the learner .* by 0\.500 on average"):
        publish_to_both(good, 2, [value - 0.5 for value in logprobs])
    damaged = replace(good, parts=(replace(good.parts[0], checksum="0" * 16), *good.parts[1:]))
    with pytest.raises(WeightSyncError, match=r"one: .*bucket 0.*two: .*these engines were stopped"):
        publish_to_both(damaged, 3, logprobs)
    for engine in engines:
        with pytest.raises(EngineError, match="is gone"):
            loop.run(RemotePolicy(engine.handle, engine.name).generate([ask("y")]))

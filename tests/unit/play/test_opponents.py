"""The models that persons play against: who waits for what, and for how long."""

import asyncio
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from actors.policy import LoadedPolicy, Sampling
from actors.transformers_policy import TransformersPolicy
from cluster.serve.opponents import MAX_LOADED, BusyError, Opponent, Opponents
from spag_ray.config.engine import EngineConfig
from spag_ray.errors import EngineError, EngineGoneError, ModelError
from tests.support.runs import tiny_run

pytestmark = pytest.mark.timeout(20, func_only=True)
STAGES = ("spag-1", "spag-2", "spag-3")


class Starts:
    """Starts real models in this process, and counts those in memory."""

    def __init__(self, model: Path, words: Path) -> None:
        self.most = 0
        self.now = 0
        self.started: list[str] = []
        self.loads_for_s: dict[str, float] = {}
        self.ends_for_s = 0.0
        self._model = model
        self._words = words

    def opponents(
        self, max_wait_s: float = 10, start_timeout_s: float = 10, stages: Sequence[str] = STAGES
    ) -> Opponents:
        engine = {"dtype": "float32", "max_model_len": 512, "start_timeout_s": start_timeout_s}
        config = tiny_run(self._model, self._words, engine=engine)
        named = {name: Opponent(str(self._model)) for name in stages}
        return Opponents(config, named, start=self._start, max_wait_s=max_wait_s)

    async def _start(self, model: str, config: EngineConfig, name: str) -> LoadedPolicy:
        starts = self
        starts.now += 1
        starts.most = max(starts.most, starts.now)
        starts.started.append(name)

        class Counted(TransformersPolicy):
            async def close(self) -> None:
                await asyncio.sleep(starts.ends_for_s)
                starts.now -= 1

        try:
            await asyncio.sleep(starts.loads_for_s.get(name, 0))
        except asyncio.CancelledError:
            starts.now -= 1
            raise
        return Counted(model, config.dtype, config.max_model_len)


@pytest.fixture
def starts(tiny_model: Path, words: Path) -> Starts:
    return Starts(tiny_model, words)


async def ask(opponents: Opponents, name: str) -> None:
    async with opponents.asked(name):
        pass


async def test_visitors_of_three_models_are_all_answered_although_two_fit(starts: Starts) -> None:
    opponents = starts.opponents()
    answered = []
    for name in STAGES[:2]:
        await ask(opponents, name)
    await opponents.frame(STAGES[2])  # from now on they come in the order below

    async def visit(name: str) -> None:
        async with opponents.asked(name):
            await asyncio.sleep(0.05)
        answered.append(name)

    await asyncio.gather(*map(visit, ("spag-1", "spag-2", "spag-1", "spag-2", "spag-3")))
    assert sorted(answered) == ["spag-1", "spag-1", "spag-2", "spag-2", "spag-3"]
    await opponents.close()
    assert starts.most == MAX_LOADED
    assert starts.now == 0


async def test_a_visitor_of_a_model_that_finds_no_room_is_told_and_keeps_nobody_from_the_others(starts: Starts) -> None:
    opponents = starts.opponents(max_wait_s=0.5)
    async with opponents.asked("spag-1"), opponents.asked("spag-2"):
        third = asyncio.create_task(ask(opponents, "spag-3"))
        with pytest.raises(BusyError, match=r"spag-1 was busy with other games for 0.5 s"):
            await ask(opponents, "spag-1")
        with pytest.raises(BusyError, match=r"spag-3 is not in memory, and the 2 models that are were all in use"):
            await third
    await ask(opponents, "spag-3")
    await opponents.close()
    assert starts.most == MAX_LOADED


async def test_a_model_that_is_never_loaded_is_given_up_and_others_are_answered_meanwhile(starts: Starts) -> None:
    opponents = starts.opponents(start_timeout_s=2)
    starts.loads_for_s["spag-2"] = 60
    hanging = asyncio.create_task(ask(opponents, "spag-2"))
    await asyncio.sleep(0.01)
    await ask(opponents, "spag-1")
    assert not hanging.done()
    with pytest.raises(EngineError, match=r"spag-2 was not loaded within engine.start_timeout_s, 2 s"):
        await hanging
    starts.loads_for_s.clear()
    await asyncio.gather(ask(opponents, "spag-2"), ask(opponents, "spag-3"))  # its room was given back
    await opponents.close()
    assert starts.most == MAX_LOADED
    assert starts.now == 0


async def test_a_model_is_loaded_once_for_all_who_wait_although_the_first_leaves(starts: Starts) -> None:
    opponents = starts.opponents()
    starts.loads_for_s["spag-1"] = 0.3
    first, second = (asyncio.create_task(ask(opponents, "spag-1")) for _ in range(2))
    await asyncio.sleep(0.1)
    first.cancel()
    await second
    await opponents.close()
    assert starts.started == ["spag-1"]


async def test_no_model_is_ended_for_one_that_nobody_waits_for_any_more(starts: Starts) -> None:
    opponents = starts.opponents()
    async with opponents.asked("spag-1"), opponents.asked("spag-2"):
        third = asyncio.create_task(ask(opponents, "spag-3"))
        await asyncio.sleep(0.1)
        third.cancel()
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.1)
    assert opponents.is_loaded("spag-1")
    assert opponents.is_loaded("spag-2")
    await opponents.close()


async def test_a_process_that_is_slow_to_end_keeps_its_room_and_no_visitor(starts: Starts) -> None:
    opponents = starts.opponents()
    starts.ends_for_s = 2
    await ask(opponents, "spag-1")
    await ask(opponents, "spag-2")
    began = asyncio.get_running_loop().time()
    with pytest.raises(EngineGoneError):
        async with opponents.asked("spag-1"):
            raise EngineGoneError("the process of spag-1 has ended")
    assert asyncio.get_running_loop().time() - began < 1, "its visitor is told at once"
    await asyncio.gather(ask(opponents, "spag-3"), ask(opponents, "spag-2"))
    await opponents.close()
    assert starts.most == MAX_LOADED


async def test_one_that_waits_takes_the_room_of_the_next_idle_model_when_another_has_ended(starts: Starts) -> None:
    """Two wait at once: the room of the first idle model goes to one of them, the second idle one has to end, too."""
    starts.ends_for_s = 0.1

    opponents = starts.opponents(max_wait_s=3, stages=[*STAGES, "spag-4"])
    for name in STAGES[:2]:
        await ask(opponents, name)
    first_answers = asyncio.Event()

    async def slow() -> None:
        async with opponents.asked(STAGES[2]):
            await first_answers.wait()

    first = asyncio.create_task(slow())
    await asyncio.sleep(0.01)
    await ask(opponents, "spag-4")
    first_answers.set()
    await first
    await opponents.close()


async def test_closing_ends_a_model_that_is_being_loaded(starts: Starts) -> None:
    opponents = starts.opponents()
    starts.loads_for_s["spag-2"] = 60
    await ask(opponents, "spag-1")
    loading = asyncio.create_task(ask(opponents, "spag-2"))
    while "spag-2" not in starts.started:
        await asyncio.sleep(0.01)
    await opponents.close()
    with pytest.raises(asyncio.CancelledError):
        await loading
    with pytest.raises(EngineError, match="the server stops"):
        await ask(opponents, "spag-3")
    assert starts.now == 0


async def test_a_tokenizer_that_is_never_read_is_given_up(starts: Starts, monkeypatch: pytest.MonkeyPatch) -> None:
    is_over = threading.Event()

    monkeypatch.setattr("cluster.serve.opponents.load_tokenizer", lambda folder, _: is_over.wait(10))
    opponents = starts.opponents(start_timeout_s=0.2)
    with pytest.raises(ModelError, match=r"the tokenizer of spag-1 was not read within 0.2 s"):
        await ask(opponents, "spag-1")
    is_over.set()
    await opponents.close()


def test_opponents_sample_as_in_the_runs_evaluations(tiny_model: Path, words: Path) -> None:
    changes: dict[str, Any] = {"sampling": {"top_k": 50, "max_new_tokens": 9}, "objective": {"loss": "published"}}
    config = tiny_run(tiny_model, words, **changes)
    assert Opponents(config, {})._sampling == Sampling(config.evaluation.temperature, 9, top_k=50)

"""docs/examples/verifiers_env.py: games that are played in verifiers are scored as in our arena, and come back.

Where the package is not installed, as in requirements/cpu.txt, tests/support/verifiers_stand_in.py takes its place.
"""

import asyncio
import importlib.util
import inspect
import itertools
import json
import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import pytest

from actors.arena import GameTask, Player, Rules, play_game
from actors.policy import Completion, Request, Sampling
from actors.pool import EnginePool
from spag_ray.config.parts import Payoffs
from spag_ray.errors import ConfigError
from spag_ray.game import check
from spag_ray.game.game_form import verdict_of
from spag_ray.game.protocol import SEATS, Message, seat_of, seat_to_move
from spag_ray.game.styles import game_renderer
from spag_ray.games.registry import load_game
from spag_ray.training_data.rewards import paid
from tests.support.families import tokenizer_of
from tests.support.verifiers_stand_in import as_modules, served

ROOT = Path(__file__).resolve().parents[3]
RECORDED = ROOT / "tests" / "golden" / "verifiers_interface.json"
IS_REAL = importlib.util.find_spec("verifiers") is not None
DUEL = "docs/examples/number_duel.py:NumberDuel"
STAIRS, PENNIES = (f"tests/support/ordered_games.py:{name}" for name in ("Stairs", "Pennies"))
FORGETFUL, HUMS = (f"tests/support/forgetful_game.py:{name}" for name in ("Forgetful", "hums"))


def reply_to(messages: Sequence[Mapping[str, str]]) -> str:
    """What a model says, by what it read alone: a word that it may say, or now and then another one."""
    rng = random.Random(json.dumps([[each["role"], each["content"]] for each in messages]))
    words = re.findall(r"(\w+) or (\w+)[?:]", messages[-1]["content"]) or [("heads", "tails")]
    return "I do not know" if rng.random() < 0.1 else rng.choice(words[-1])


@pytest.fixture
def example(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(ROOT)
    if not IS_REAL:
        for name, module in as_modules().items():
            monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.syspath_prepend(str(ROOT / "docs" / "examples"))
    monkeypatch.delitem(sys.modules, "verifiers_env", raising=False)
    return importlib.import_module("verifiers_env")


def played(
    example: Any, game: str, say: Callable[[Sequence[Mapping[str, str]]], str] = reply_to, **settings: Any
) -> tuple[list[Any], list[Sequence[Message]]]:
    """The episodes of the first scenarios, and what the model was asked, in order."""
    vf, asked = example.vf, []

    async def answer(body: Mapping[str, Any], token: str) -> Mapping[str, Any]:
        asked.append(body["messages"])
        message = {"role": "assistant", "content": say(body["messages"])}
        choice = {"index": 0, "finish_reason": "stop", "message": message}
        return {"id": "-", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}

    async def all_of() -> list[Any]:
        env = example.load_environment(game, **settings)
        server: AbstractAsyncContextManager[str] = served("/v1/chat/completions", answer)
        async with server as address, env.serving():
            client = vf.EvalClientConfig(base_url=f"{address}/v1", api_key_var="NO_KEY")
            ctx = vf.ModelContext(model="a model", client=client)
            return [await env.run_episode(task, ctx) for task in itertools.islice(env.taskset, 12)]

    return asyncio.run(all_of()), asked


class SaysSo:
    """A policy of the arena that replies like the model, or as the game's scripted seat does in the example."""

    name, version, is_dead = "says so", 0, False

    def __init__(self, game: Any, renderer: Any, is_scripted: bool) -> None:
        self._game, self._renderer, self._is_scripted = game, renderer, is_scripted

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        return [self._answer(request) for request in requests]

    def _answer(self, request: Request) -> Completion:
        assert request.view is not None
        seat, scenario = seat_of(request.view.role), request.view.scenario
        history = list(request.view.history)
        rng = random.Random(f"0/{scenario}/{len(history)}")
        if self._is_scripted:
            text = self._game.scripted(seat, history, scenario, rng)
        else:
            text = reply_to(self._game.messages(seat, history, scenario))
        tokens = tuple(self._renderer.reply_ids(text))
        return Completion(request.request_id, tokens, (-0.5,) * len(tokens), 0, 0, "stop")


def in_the_arena(name: str, scenario: str, is_scripted: bool) -> tuple[list[str], str, list[float | None]]:
    """(turns, end reason, payoffs of both seats)"""
    game = load_game(name)
    renderer = game_renderer(game, tokenizer_of("smollm2"), "chat")
    players = {}
    for role, by_rules in (("attacker", False), ("defender", is_scripted)):
        pool = EnginePool(role)
        pool.join(role, SaysSo(game, renderer, by_rules))  # type: ignore[arg-type]
        players[role] = Player(pool, renderer, Sampling(1.0, 64))
    episode = asyncio.run(play_game(GameTask(0, scenario, "test"), players, Rules(game, name)))
    payoffs = paid(Payoffs(), episode.verdict)
    return [turn.text for turn in episode.turns], str(episode.verdict.end_reason), [payoffs[role] for role in SEATS]


@pytest.mark.parametrize("is_scripted", [False, True])
@pytest.mark.parametrize("name", ["kuhn", DUEL, STAIRS, PENNIES])
def test_games_are_played_and_scored_as_in_the_arena(name: str, is_scripted: bool, example: Any) -> None:
    settings: dict[str, Any] = {"second_player": "scripted"} if is_scripted else {}
    episodes, _ = played(example, name, **settings)
    assert len(episodes) == min(12, len(load_game(name).scenarios()))
    for episode in episodes:
        assert episode.ok, episode.errors
        turns, end_reason, payoffs = in_the_arena(name, episode.task.data.scenario, is_scripted)
        for trace in episode.traces:
            told, payoff = trace.info["game"], payoffs[example.ROLES.index(trace.agent.name)]
            assert (told["turns"], told["end_reason"]) == (turns, end_reason)
            assert trace.agent.trainable == (payoff is not None), "a seat that this end leaves untrained"
            assert trace.reward == (payoff or 0.0)
        assert episode.traces


def test_an_agent_is_sent_what_its_seat_reads_and_nothing_else(example: Any) -> None:
    game = load_game("kuhn")
    episodes, asked = played(example, "kuhn")
    views = []
    for episode in episodes:
        turns, deal = episode.traces[0].info["game"]["turns"], episode.task.data.scenario
        views += [list(game.messages(place % 2, turns[:place], deal)) for place in range(len(turns))]
        assert {node.message.role for trace in episode.traces for node in trace.nodes} == {"user", "assistant"}
    assert asked == views


def test_views_that_do_not_grow_are_sent_as_they_are_and_thoughts_stay_private(example: Any) -> None:
    replies = itertools.count()
    [episode], asked = played(example, FORGETFUL, lambda _: f"(secret) word {next(replies)} ")
    assert [[each["content"] for each in messages] for messages in asked] == [
        [f"turn {place}, you heard: {f'word {place - 1}' if place else ''}"] for place in range(5)
    ]
    assert episode.traces[0].info["game"]["turns"] == [f"word {place}" for place in range(5)]
    [first] = [trace for trace in episode.traces if trace.agent.name == "first"]
    assert [node.parent is None for node in first.nodes if node.message.role == "user"] == [True] * 3


def test_a_seat_may_be_a_function_and_only_the_named_seats_are_trained(example: Any) -> None:
    [episode], asked = played(example, FORGETFUL, lambda _: "(hm) yes", first_player=HUMS, trained="first")
    [trace] = episode.traces
    assert (trace.agent.name, trace.agent.trainable, trace.reward) == ("second", False, -1.0)
    assert trace.info["game"]["turns"] == ["hum 0 1", "yes", "hum 0 1", "yes", "hum 0 1"]
    assert len(asked) == 2


def test_a_seat_that_may_not_reply_ends_the_game_as_a_full_context_does(example: Any) -> None:
    [episode], _ = played(example, FORGETFUL, lambda _: "yes", second={"max_turns": 1})
    assert episode.ok
    for trace in episode.traces:
        assert (trace.info["game"]["turns"], trace.info["game"]["end_reason"]) == (["yes"] * 3, "context full")
        assert not trace.agent.trainable
        assert trace.reward == 0.0


def test_a_model_that_fails_makes_an_episode_that_counts_as_failed(example: Any) -> None:
    episodes, _ = played(example, "kuhn", lambda _: 1 / 0)  # type: ignore[arg-type, return-value]
    assert [episode.ok for episode in episodes] == [False] * 6
    assert all(trace.errors for episode in episodes for trace in episode.traces)


def test_players_that_cannot_be_are_refused(example: Any) -> None:
    with pytest.raises(ConfigError, match="one of the seats has to be an agent"):
        example.load_environment("kuhn", first_player="scripted", second_player="scripted")
    with pytest.raises(ConfigError, match="khun is not known"):
        example.load_environment("khun")
    [episode], _ = played(example, FORGETFUL, second_player="scripted")
    assert not episode.ok
    assert "has no scripted seats" in str(episode.errors)


def there_and_back(example: Any, name: str, max_turns: int) -> Any:
    return example.VerifiersGame(example.load_environment(name), max_turns)


@pytest.mark.parametrize("name", ["kuhn", STAIRS])
def test_a_game_comes_back_the_same(name: str, example: Any) -> None:
    here = load_game(name)
    back = there_and_back(example, name, here.max_turns)
    assert check(lambda: there_and_back(example, name, here.max_turns), 20) == []
    num_ends = 0

    def compare(history: list[str], place: str, scenario: str) -> None:
        nonlocal num_ends
        movers = [seat_to_move(here, history[:turn], scenario) for turn in range(len(history))]
        ours, theirs = (verdict_of(here, history, scenario), back.rule(history, place)) if history else (None, None)
        if ours is not None:
            num_ends += 1
            assert theirs is not None
            assert ours.payoffs is not None
            # A seat that had no turn has no trace, so no reward.
            assert theirs.payoffs == tuple(ours.payoffs[seat] if seat in movers else None for seat in (0, 1))
            return
        assert theirs is None
        seat = seat_to_move(here, history, scenario)
        assert back.to_move(history, place) == seat
        assert list(back.messages(seat, history, place)) == list(here.messages(seat, history, scenario))
        for text in ("check", "bet", "fold") if name == "kuhn" else ("go", "stop"):
            if len(history) < 6:
                compare([*history, text], place, scenario)

    for place, scenario in enumerate(here.scenarios()):
        compare([], str(place), scenario)
    assert num_ends > 10


def test_a_task_of_one_reply_is_a_game_of_one_seat(example: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tests" / "support"))
    monkeypatch.delitem(sys.modules, "sums_taskset", raising=False)

    def sums() -> Any:
        vf = example.vf
        return example.VerifiersGame(vf.SingleAgentEnv(vf.SingleAgentEnvConfig(taskset={"id": "sums_taskset"})), 1)

    assert check(sums, 30) == []
    game = sums()
    assert (game.seats, game.scenarios()) == (("agent", "environment"), ["0", "1", "2", "3"])
    assert game.messages(0, [], "2") == ({"role": "user", "content": "Say a number.\n\n2 + 3 = ?"},)
    assert [game.rule([text], "2").payoffs for text in ("5", "6", "five")] == [(1.0, None), (0.0, None), (-0.5, None)]


def test_agents_that_repeat_the_conversation_are_refused_views_that_do_not_grow(example: Any) -> None:
    back = there_and_back(example, FORGETFUL, 3)
    assert back.to_move(["one"], "0") == 1
    with pytest.raises(ConfigError, match="this game changes earlier messages"):
        back.to_move(["one", "two"], "0")


def shape_of(vf: Any, used: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    """{Class: its fields, Class.method: its parameters} of what the example uses."""
    found: dict[str, Any] = {}
    for name, methods in used.items():
        kind = getattr(vf, name)
        fields = getattr(kind, "model_fields", None) or getattr(kind, "__dataclass_fields__", None) or {}
        found[name] = sorted(fields)
        for method in methods:
            found[f"{name}.{method}"] = list(inspect.signature(getattr(kind, method)).parameters)
    return found


def test_the_interface_is_the_recorded_one_of_version_0_4(example: Any) -> None:
    """To record it anew, give this test's `shape_of` the installed package."""
    recorded = json.loads(RECORDED.read_text(encoding="utf-8"))
    used: dict[str, list[str]] = {}
    for entry in recorded:
        name, _, method = entry.partition(".")
        used.setdefault(name, []).extend([method] if method else [])
    for entry, names in shape_of(example.vf, used).items():
        if "." in entry or IS_REAL:
            assert names == recorded[entry], entry
        else:
            assert set(names) <= set(recorded[entry]), entry
    text = (ROOT / "docs" / "examples" / "verifiers_env.py").read_text(encoding="utf-8")
    assert set(re.findall(r"\bvf\.([A-Z]\w+)", text)) <= used.keys()


@pytest.fixture(autouse=True)
def _forget_own_modules() -> Iterator[None]:
    """Modules that were imported with a stand-in do not outlive the test."""
    yield
    for name in ("verifiers_env", "sums_taskset"):
        sys.modules.pop(name, None)

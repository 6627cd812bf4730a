"""Our games as environments of verifiers 0.4 (https://github.com/PrimeIntellect-ai/verifiers), and such environments as
games (docs/games.md, "In verifiers, and back").

    env = load_environment("kuhn", second_player="scripted")       an Env: seat 0 is an agent, seat 1 plays by rules
    env = load_environment("my_game.py:MyGame")                    both seats are agents

    class Sums(VerifiersGame):                                     and back
        def __init__(self): super().__init__(vf.load_environment(...), max_turns=1)

verifiers finds this module by its name, so its folder has to be on sys.path.
"""

from __future__ import annotations

import asyncio
import inspect
import itertools
import random
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Literal

import httpx
import verifiers.v1 as vf

from spag_ray.config.parts import Payoffs
from spag_ray.errors import ConfigError
from spag_ray.game.game_form import out_of_room, verdict_of
from spag_ray.game.protocol import SEATS, Game, History, Message, Ruling, Scripted, marks_of, played_by, seat_to_move
from spag_ray.game.renderer import checked_messages
from spag_ray.game.rules import Outcome, Verdict
from spag_ray.game.turn import after_thought, without_thought
from spag_ray.games.registry import load_game, own_function
from spag_ray.tokens import THOUGHT
from spag_ray.training_data.rewards import paid

__all__ = ["GameEnv", "Games", "SeatHarness", "VerifiersGame", "load_environment"]  # verifiers wants one of each kind

ROLES = ("first", "second")  # the agents of seats 0 and 1
SCRIPTED = "scripted"
TLS = httpx.create_ssl_context()  # takes longer than a request, so it is made once
ANSWER_S = 600.0  # for one reply of a model


class GamesConfig(vf.TasksetConfig):
    game: str = "kuhn"
    """Any name that `game.name` takes, such as kuhn, my_game.py:MyGame or textarena:TicTacToe-v0."""


class GameData(vf.TaskData):
    game: str
    scenario: str


class GameTask(vf.Task[GameData, vf.State, vf.TaskConfig]):
    """A scenario. Its data goes into every trace, hidden facts included; no agent reads it."""


class Games(vf.Taskset[GameTask, GamesConfig]):
    """The scenarios of a game, in the game's order; none are held out."""

    def load(self) -> Iterator[GameTask]:
        for scenario in load_game(self.config.game).scenarios():
            data = GameData(name=scenario, game=self.config.game, scenario=scenario)
            yield GameTask(data, self.config.task)


class SeatHarness(vf.Harness[vf.HarnessConfig]):
    """Plays a seat: one chat completion a turn, asked for in this process, without tools. It sends the messages that
    the game shows, whatever was sent before."""

    APPENDS_SYSTEM_PROMPT = True
    SUPPORTS_RESUME = True
    EXECUTES_CODE = False
    NEEDS_CONTAINER = False

    async def launch(self, *given: Any) -> Any:
        """As `resume`, whose first arguments these are, with what the agent reads first."""
        prompt = given[-1].prompt
        return await self.resume(*given, [vf.UserMessage(content=prompt)] if isinstance(prompt, str) else prompt)

    async def resume(
        self,
        ctx: Any,
        trace: Any,
        runtime: Any,
        endpoint: str,
        secret: str,
        mcp_urls: Any,
        data: Any,
        messages: Any,
        tool_interception_url: str | None = None,
    ) -> Any:
        system = [{"role": "system", "content": data.system_prompt}] if data.system_prompt else []
        body = [*system, *({"role": each.role, "content": each.content} for each in messages)]
        async with httpx.AsyncClient(timeout=ANSWER_S, verify=TLS) as client:
            reply = await client.post(
                f"{endpoint}/chat/completions",
                json={"model": ctx.model, "messages": body},
                headers={"Authorization": f"Bearer {secret}"},
            )
        return vf.ProgramResult(exit_code=0 if reply.is_success else 1, stdout="", stderr=reply.text)


SEAT = vf.AgentConfig(runtime=vf.SubprocessConfig())  # the default would rent a machine; nothing runs in this one


class GameEnvConfig(vf.EnvConfig):
    first: vf.AgentConfig = SEAT
    second: vf.AgentConfig = SEAT
    first_player: str = ""
    """Who plays seat 0: its agent (empty); `scripted` or `scripted:NAME`, by the game's rules; or FILE.py:FUNCTION,
    called with (seat, messages, rng), which returns the reply or an awaitable of it."""
    second_player: str = ""
    trained: Literal["both", "first", "second"] = "both"
    seed: int = 0
    """Of players that are no agents: they draw the same in every rollout of a scenario."""


class GameEnv(vf.Env[GameEnvConfig]):
    """One game an episode. The trace of each agent that had a turn has the reward `payoff`, what the game paid its
    seat; `info["game"]` has the turns and how the game ended. A seat that the game leaves untrained is marked so."""

    def __init__(self, config: GameEnvConfig) -> None:
        super().__init__(config)
        if config.first_player and config.second_player:
            raise ConfigError("first_player, second_player: one of the seats has to be an agent; leave one empty")
        self._game = load_game(self.taskset.config.game)

    async def setup(self, agents: Any) -> None:
        for role in ROLES:
            getattr(agents, role).trainable = self.config.trained in ("both", role)

    async def run(self, task: Any, agents: Any) -> None:
        game = self._game
        async with AsyncExitStack() as stack:
            seats = [self._seat(seat, task, agents, stack) for seat in (0, 1)]
            history, verdict = await _played(game, task.data.scenario, seats)
        results = paid(Payoffs(), verdict)
        for seat, role in enumerate(SEATS):
            trace, payoff = seats[seat].trace, results[role]
            if trace is None:
                continue
            if payoff is None:
                trace.agent.trainable = False
            else:
                trace.record_reward("payoff", payoff)
            trace.info["game"] = {
                "seat": game.seats[seat],
                "turns": history,
                "outcome": str(verdict.outcome),
                "end_reason": str(verdict.end_reason),
            }

    def _seat(self, seat: int, task: Any, agents: Any, stack: AsyncExitStack) -> _Seat:
        player = (self.config.first_player, self.config.second_player)[seat]
        if not player:
            return _AgentSeat(seat, self._game, task, getattr(agents, ROLES[seat]), stack)
        name, _, strategy = player.partition(":")
        if name != SCRIPTED:
            return _FunctionSeat(seat, own_function(player, f"{ROLES[seat]}_player"), self.config.seed)
        game = played_by(self._game, strategy)
        if not isinstance(game, Scripted):
            raise ConfigError(f"{ROLES[seat]}_player: {task.data.game} has no scripted seats")
        return _ScriptedSeat(seat, game, self.config.seed)


def load_environment(game: str = "kuhn", **settings: Any) -> GameEnv:
    """The environment of this game. `settings`: of GameEnvConfig, such as `second={"model": "other"}`."""
    return GameEnv(GameEnvConfig(taskset={"id": __name__, "game": game}, **settings))


async def _played(game: Game, scenario: str, seats: Sequence[_Seat]) -> tuple[list[str], Verdict]:
    """The turns of a game and its verdict, as actors/arena.py plays it."""
    history: list[str] = []
    while True:
        seat = seat_to_move(game, history, scenario)
        text = await seats[seat].reply(checked_messages(game, seat, history, scenario), history, scenario)
        if text is None:
            return history, out_of_room(SEATS[seat], len(history))
        history.append(text)
        if (verdict := verdict_of(game, history, scenario)) is not None:
            return history, verdict


class _Seat:
    """Whoever plays a seat. `trace` is that of its agent, if it is one and has had a turn."""

    trace: Any = None

    def __init__(self, seat: int, seed: int = 0) -> None:
        self.seat, self._seed = seat, seed

    async def reply(self, messages: Sequence[Message], history: History, scenario: str) -> str | None:
        """The text that the other seat and the referee get; None if there is none, for a limit or an error."""
        raise NotImplementedError

    def _rng(self, history: History, scenario: str) -> random.Random:
        return random.Random(f"{self._seed}/{scenario}/{len(history)}")


class _ScriptedSeat(_Seat):
    def __init__(self, seat: int, game: Scripted, seed: int) -> None:
        super().__init__(seat, seed)
        self._game = game

    async def reply(self, messages: Sequence[Message], history: History, scenario: str) -> str | None:
        return self._game.scripted(self.seat, history, scenario, self._rng(history, scenario))


class _FunctionSeat(_Seat):
    def __init__(self, seat: int, function: Any, seed: int) -> None:
        super().__init__(seat, seed)
        self._function = function

    async def reply(self, messages: Sequence[Message], history: History, scenario: str) -> str | None:
        found = self._function(self.seat, messages, self._rng(history, scenario))
        return str(await found if inspect.isawaitable(found) else found)


class _AgentSeat(_Seat):
    """Opens the agent's rollout at its first turn: a seat that the game never reached has no trace."""

    def __init__(self, seat: int, game: Game, task: Any, agent: Any, stack: AsyncExitStack) -> None:
        super().__init__(seat)
        self._marks, self._task, self._agent, self._stack = marks_of(game), task, agent, stack
        self._interaction: Any = None
        self._read: list[Message] = []

    async def reply(self, messages: Sequence[Message], history: History, scenario: str) -> str | None:
        if self._interaction is None:
            self._interaction = await self._stack.enter_async_context(self._agent.interaction(self._task))
            self.trace = self._interaction.trace
        segment = await self._interaction.turn([dict(each) for each in self._news(messages)])
        if segment.terminated:
            return None
        said = (segment.messages[-1].content or "").strip()
        if said.startswith(THOUGHT[0]):
            said = after_thought(said)
        said = without_thought(self._marks, said)
        self._read = [*messages, {"role": "assistant", "content": said}]
        return said

    def _news(self, messages: Sequence[Message]) -> Sequence[Message]:
        """All of them for SeatHarness. Other harnesses repeat the conversation themselves, so they get the rest of
        it. Raises ConfigError if the messages do not extend it."""
        if isinstance(self._agent.harness, SeatHarness):
            return messages
        num_read = len(self._read)
        if list(messages[:num_read]) != self._read:
            raise ConfigError(
                "this game changes earlier messages, which the harness of this agent repeats; leave `harness` out"
            )
        return messages[num_read:]


@dataclass(frozen=True)
class _State:
    """What is known after a history: the seat to move and what it reads, or the ruling."""

    seat: int = 0
    messages: tuple[Message, ...] = ()
    ruling: Ruling | None = None


class VerifiersGame:
    """An environment with one or two agents as a game: agents are seats, in the order of the configuration, and what
    it says to them are the messages of the user. A state is the history replayed through `run`, so `run` and the
    rewards may depend on the task and the replies alone; they get no tools, runtime or model. A scenario is a task's
    place in the taskset. `scale` brings rewards into -2 to 2. Raises ConfigError for other numbers of agents."""

    is_exhaustive = False

    def __init__(self, env: vf.Env[Any], max_turns: int = 8, num_tasks: int = 1000, scale: float = 1.0) -> None:
        self._env, self._scale, self.max_turns = env, scale, max_turns
        self._roles = list(_agents_of(env.config))
        if len(self._roles) not in (1, 2):
            raise ConfigError(f"{type(env).__name__} has {len(self._roles)} agents; games have two seats")
        self.seats = (self._roles[0], self._roles[1] if len(self._roles) == 2 else "environment")
        self._tasks = {str(place): task for place, task in enumerate(itertools.islice(env.taskset, num_tasks))}
        self._states: dict[tuple[str, tuple[str, ...]], _State] = {}

    def scenarios(self) -> Sequence[str]:
        return list(self._tasks)

    def to_move(self, history: History, scenario: str) -> int:
        return self._after(history, scenario).seat

    def messages(self, seat: int, history: History, scenario: str) -> Sequence[Message]:
        return self._after(history, scenario).messages

    def rule(self, history: History, scenario: str) -> Ruling | None:
        return self._after(history, scenario).ruling

    def _after(self, history: History, scenario: str) -> _State:
        key = (scenario, tuple(history))
        if key not in self._states:
            if len(self._states) >= 4096:
                self._states.clear()
            with ThreadPoolExecutor(1) as pool:  # arenas have a running loop in their own thread
                self._states[key] = pool.submit(asyncio.run, self._replayed(*key)).result()
        return self._states[key]

    async def _replayed(self, scenario: str, history: tuple[str, ...]) -> _State:
        task, table = self._tasks[scenario], _Table(self._env.config, history)
        try:
            await self._env.setup(table)
            await self._env.run(task, table)
        except _WaitsError as waits:
            return _State(self._roles.index(waits.role), _alternating(waits.heard))
        episode = vf.Episode(env=vf.EnvInfo(id=self._env.config.env_id), task=_traced(task), traces=table.traces)
        await self._env.finalize(task, episode)
        payoffs: list[float | None] = [None, None]
        for trace in episode.traces:
            if trace.agent.trainable:
                seat = self._roles.index(trace.agent.name)
                payoffs[seat] = (payoffs[seat] or 0.0) + self._scale * trace.reward
        first, second = (each or 0.0 for each in payoffs)
        outcome = Outcome.TIED if first == second else Outcome.win_of(SEATS[int(first < second)])
        return _State(ruling=Ruling(outcome, "ended", f"the rewards are {payoffs}", None, (payoffs[0], payoffs[1])))


class _WaitsError(BaseException):
    """The agent `role` is asked for a reply that is not there yet; it has `heard` these messages. No Exception, so
    that environments that survive a failed agent do not survive this."""

    def __init__(self, role: str, heard: Sequence[Message]) -> None:
        super().__init__(role)
        self.role, self.heard = role, heard


class _Table:
    """The agents of an episode; they give the replies of a history in the order in which they are asked."""

    def __init__(self, config: Any, history: Sequence[str]) -> None:
        self.replies = list(reversed(history))
        self.traces: list[Any] = []
        self._agents = {name: _Replayer(name, value, self) for name, value in _agents_of(config).items()}

    def __getattr__(self, role: str) -> Any:
        return self._agents[role]


class _Replayer:
    """An agent whose replies are known."""

    harness = None

    def __init__(self, role: str, config: Any, table: _Table) -> None:
        self.role, self.config, self.trainable = role, config, True
        self._table = table

    async def run(self, task: Any) -> Any:
        async with self.interaction(task) as interaction:
            await interaction.turn()
        return interaction.trace

    @asynccontextmanager
    async def interaction(self, task: Any) -> AsyncIterator[_Replay]:
        info = vf.AgentInfo(config=self.config, name=self.role, trainable=self.trainable)
        replay = _Replay(task, vf.Trace(task=_traced(task), agent=info), self._table)
        yield replay
        replay.trace.stop("user_closed")
        replay.trace.ok = True
        await task.score(replay.trace)
        self._table.traces.append(replay.trace)


class _Replay:
    def __init__(self, task: Any, trace: Any, table: _Table) -> None:
        self.trace, self._table = trace, table
        self._num_turns = 0
        prompt = task.data.prompt or []
        system = [{"role": "system", "content": task.data.system_prompt}] if task.data.system_prompt else []
        self._hear([*system, *([{"role": "user", "content": prompt}] if isinstance(prompt, str) else prompt)])

    async def turn(self, message: Any = None) -> Any:
        self._hear([{"role": "user", "content": message}] if isinstance(message, str) else message or [])
        if self.trace.agent.config.max_turns == self._num_turns:
            return vf.Segment(messages=[], terminated=True)
        if not self._table.replies:
            nodes = [node.message for node in self.trace.nodes]
            raise _WaitsError(self.trace.agent.name, [{"role": each.role, "content": each.content} for each in nodes])
        self._num_turns += 1
        said = vf.AssistantMessage(content=self._table.replies.pop())
        self._add(said, sampled=True)
        return vf.Segment(messages=[said], root_reply=said.content)

    def _hear(self, messages: Sequence[Any]) -> None:
        kinds = {"system": vf.SystemMessage, "user": vf.UserMessage, "assistant": vf.AssistantMessage}
        for each in messages:
            said = each if isinstance(each, dict) else each.model_dump()
            self._add(kinds[said["role"]](content=said["content"]), sampled=False)

    def _add(self, message: Any, sampled: bool) -> None:
        parent = len(self.trace.nodes) - 1 if self.trace.nodes else None
        self.trace.nodes.append(vf.MessageNode(parent=parent, message=message, sampled=sampled))


def _agents_of(config: Any) -> dict[str, Any]:
    """{role: its configuration}"""
    return {name: value for name, value in config if isinstance(value, vf.AgentConfig)}


def _traced(task: Any) -> Any:
    return vf.TraceTask(type=type(task).__name__, data=task.data, key=task.key, hash=task.hash)


def _alternating(heard: Sequence[Message]) -> tuple[Message, ...]:
    """Messages of the user and the assistant by turns: those of the system, and several in a row, are the user's."""
    found: list[dict[str, str]] = []
    for each in heard:
        role = "assistant" if each["role"] == "assistant" else "user"
        if role == "user" and found and found[-1]["role"] == role:
            found[-1]["content"] += "\n\n" + each["content"]
        else:
            found.append({"role": role, "content": each["content"]})
    return tuple(found)

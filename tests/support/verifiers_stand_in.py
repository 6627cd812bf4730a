"""A stand-in for `verifiers.v1`, whose requirements (mcp 2.0.0, openai below 3) are not the versions of
requirements/cpu.txt.

It has what docs/examples/verifiers_env.py uses of version 0.4.0, with the signatures and fields of
tests/golden/verifiers_interface.json, which were recorded from that version. As there, a harness asks the model at an
interception server on loopback, which forwards the request to the client's endpoint and adds it to the trace.
"""

from __future__ import annotations

import hashlib
import importlib
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, Literal, Self, TypeVar, get_args

import httpx
from aiohttp import web
from pydantic import BaseModel, ConfigDict, Field, SerializeAsAny, model_validator

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")


class SystemMessage(BaseModel):
    role: Literal["system"] = "system"
    content: str


class UserMessage(BaseModel):
    role: Literal["user"] = "user"
    content: str


class AssistantMessage(BaseModel):
    role: Literal["assistant"] = "assistant"
    content: str | None = None


_MESSAGES: dict[str, Any] = {"system": SystemMessage, "user": UserMessage, "assistant": AssistantMessage}


class State(BaseModel):
    pass


class TaskConfig(BaseModel):
    pass


class TaskData(BaseModel):
    model_config = ConfigDict(frozen=True)

    idx: int | None = None
    name: str | None = None
    prompt: str | list[Any] | None = None
    system_prompt: str | None = None


def reward(func: Any = None, weight: float = 1.0) -> Any:
    def marked(found: Any) -> Any:
        found.weight_of_reward = weight
        return found

    return marked if func is None else marked(func)


class Task(Generic[A, B, C]):
    def __init__(self, data: Any, config: Any = None) -> None:
        self.data, self.config = data, config

    @property
    def hash(self) -> str:
        return hashlib.sha256(self.data.model_dump_json(exclude_none=True).encode()).hexdigest()

    @property
    def key(self) -> str:
        return self.hash

    def with_data(self, **update: Any) -> Self:
        return type(self)(self.data.model_copy(update=update), self.config)

    async def score(self, trace: Trace, runtime: Any = None) -> None:
        for name, function in vars(type(self)).items():
            if hasattr(function, "weight_of_reward"):
                found = await function(self, task=self.data, trace=trace)
                trace.record_reward(name, found, function.weight_of_reward)


class TasksetConfig(BaseModel):
    id: str = ""
    task: TaskConfig = TaskConfig()


class Taskset(Generic[A, B]):
    def __init__(self, config: Any) -> None:
        self.config = config

    def load(self) -> Iterable[Any]:
        raise NotImplementedError

    def __iter__(self) -> Iterator[Any]:
        return (task.with_data(idx=place) for place, task in enumerate(self.load()))


class HarnessConfig(BaseModel):
    id: str = ""


@dataclass
class ProgramResult:
    exit_code: int
    stdout: str
    stderr: str


class Harness(Generic[A]):
    def __init__(self, config: Any) -> None:
        self.config = config

    async def launch(
        self, ctx: Any, trace: Any, runtime: Any, endpoint: str, secret: str, mcp_urls: Any, data: Any
    ) -> Any:
        raise NotImplementedError

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
        raise NotImplementedError


class SubprocessConfig(BaseModel):
    pass


class EvalClientConfig(BaseModel):
    base_url: str
    api_key_var: str = "PRIME_API_KEY"


class AgentConfig(BaseModel):
    harness: HarnessConfig | None = None
    runtime: SubprocessConfig = SubprocessConfig()
    model: str | None = None
    client: EvalClientConfig | None = None
    max_turns: int | None = None


@dataclass(frozen=True)
class ModelContext:
    model: str
    client: Any


class AgentInfo(BaseModel):
    config: AgentConfig
    name: str = "agent"
    trainable: bool = True


class TraceTask(BaseModel):
    type: str
    data: SerializeAsAny[TaskData]
    key: str | None = None
    hash: str | None = None


class Reward(BaseModel):
    score: float
    weight: float


class MessageNode(BaseModel):
    parent: int | None = None
    message: Any
    sampled: bool = False


class Trace(BaseModel):
    id: str = Field(default_factory=lambda: uuid.uuid4().hex)
    task: TraceTask
    agent: AgentInfo
    nodes: list[MessageNode] = Field(default_factory=list)
    rewards: dict[str, Reward] = Field(default_factory=dict)
    info: dict[str, Any] = Field(default_factory=dict)
    ok: bool = False
    stop_condition: str | None = None
    errors: list[str] = Field(default_factory=list)

    @property
    def reward(self) -> float:
        return sum(each.score * each.weight for each in self.rewards.values())

    @property
    def num_turns(self) -> int:
        return sum(node.sampled for node in self.nodes)

    @property
    def last_reply(self) -> str:
        said = [node.message.content for node in self.nodes if node.message.role == "assistant"]
        return said[-1].strip() if said else ""

    def record_reward(self, name: str, value: float, weight: float = 1.0) -> None:
        self.rewards[name] = Reward(score=value, weight=weight)

    def stop(self, condition: str, override: bool = False) -> None:
        if override or self.stop_condition is None:
            self.stop_condition = condition

    def commit(self, messages: list[Any], reply: str) -> None:
        """Messages that extend a path from a root are added to it; others open a branch of their own."""
        parent: int | None = None
        for message in messages:
            same = (place for place, node in enumerate(self.nodes) if (node.parent, node.message) == (parent, message))
            found = next(same, None)
            if found is None:
                self.nodes.append(MessageNode(parent=parent, message=message))
                found = len(self.nodes) - 1
            parent = found
        self.nodes.append(MessageNode(parent=parent, message=AssistantMessage(content=reply), sampled=True))


class EnvInfo(BaseModel):
    id: str


class Episode(BaseModel):
    env: EnvInfo
    task: TraceTask
    traces: list[Trace] = Field(default_factory=list)
    ok: bool = False
    errors: list[str] = Field(default_factory=list)


@dataclass(frozen=True)
class Segment:
    messages: list[Any]
    root_reply: str | None = None
    terminated: bool = False


class Interaction:
    def __init__(self, agent: Agent, task: Any) -> None:
        self._agent, self._task = agent, task
        info = AgentInfo(config=agent.config, name=agent.name, trainable=agent.trainable)
        self.trace = Trace(task=TraceTask(type=type(task).__name__, data=task.data), agent=info)

    async def turn(self, message: Any = None) -> Segment:
        agent, trace = self._agent, self.trace
        if trace.num_turns == agent.config.max_turns:
            trace.stop("max_turns")
            return Segment(messages=[], terminated=True)
        messages = [_MESSAGES[each["role"]](content=each["content"]) for each in message]
        secret = uuid.uuid4().hex
        agent.sessions[secret] = (trace, agent.ctx)
        data = self._task.data
        result = await agent.harness.resume(agent.ctx, trace, None, agent.endpoint, secret, {}, data, messages)
        if result.exit_code:
            trace.errors.append(result.stderr)
            trace.stop("harness_error")
            return Segment(messages=[], terminated=True)
        return Segment(messages=[trace.nodes[-1].message])


class Agent:
    def __init__(self, name: str, config: AgentConfig, harness: Harness[Any], ctx: ModelContext, env: Any) -> None:
        self.name, self.config, self.harness, self.trainable = name, config, harness, True
        self.ctx = ModelContext(config.model or ctx.model, config.client or ctx.client)
        self.endpoint, self.sessions, self._traces = env.endpoint, env.sessions, env.traces

    @asynccontextmanager
    async def interaction(
        self, task: Any, *, runtime: Any = None, tools: Any = None, on_trace: Any = None
    ) -> AsyncIterator[Interaction]:
        interaction = Interaction(self, task)
        yield interaction
        interaction.trace.stop("user_closed")
        interaction.trace.ok = not interaction.trace.errors
        await task.score(interaction.trace)
        self._traces.append(interaction.trace)


class EnvConfig(BaseModel):
    id: str = ""
    taskset: SerializeAsAny[TasksetConfig] = TasksetConfig()

    @property
    def env_id(self) -> str:
        return self.taskset.id

    @model_validator(mode="before")
    @classmethod
    def _narrowed(cls, data: dict[str, Any]) -> dict[str, Any]:
        """The taskset's own configuration by its id; what is given of an agent is put onto its default."""
        found = dict(data)
        if isinstance(taskset := found.get("taskset"), dict):
            found["taskset"] = _argument(_plugin(taskset["id"], Taskset), TasksetConfig)(**taskset)
        for name, given in found.items():
            if isinstance(given, dict) and isinstance(default := cls.model_fields[name].default, AgentConfig):
                found[name] = {**default.model_dump(), **given}
        return found


class Env(Generic[A]):
    def __init__(self, config: Any) -> None:
        self.config = config
        self.taskset = _plugin(config.taskset.id, Taskset)(config.taskset)
        self.endpoint, self.sessions = "", dict[str, Any]()

    async def setup(self, agents: Any) -> None:
        pass

    async def run(self, task: Any, agents: Any) -> None:
        raise NotImplementedError

    async def finalize(self, task: Any, episode: Episode) -> None:
        pass

    @asynccontextmanager
    async def serving(self) -> AsyncIterator[None]:
        async with served("/v1/chat/completions", self._intercepted) as address:
            self.endpoint = f"{address}/v1"
            yield

    async def _intercepted(self, body: Mapping[str, Any], secret: str) -> Mapping[str, Any]:
        trace, ctx = self.sessions[secret]
        async with httpx.AsyncClient(timeout=None, verify=False) as client:
            reply = await client.post(f"{ctx.client.base_url}/chat/completions", json={**body, "model": ctx.model})
        if not reply.is_success:
            raise web.HTTPBadGateway(text=reply.text)
        found: Mapping[str, Any] = reply.json()
        messages = [_MESSAGES[each["role"]](content=each["content"]) for each in body["messages"]]
        trace.commit(messages, found["choices"][0]["message"]["content"])
        return found

    async def run_episode(self, task: Any, ctx: Any, *, on_trace: Any = None, on_discard: Any = None) -> Episode:
        traced = TraceTask(type=type(task).__name__, data=task.data)
        episode = Episode(env=EnvInfo(id=self.config.env_id), task=traced)
        harness = _plugin(self.config.taskset.id, Harness)(HarnessConfig(id=self.config.taskset.id))
        agents = ModuleType("agents")
        shared = ModuleType("shared")
        vars(shared).update(endpoint=self.endpoint, sessions=self.sessions, traces=episode.traces)
        for name, value in self.config:
            if isinstance(value, AgentConfig):
                setattr(agents, name, Agent(name, value, harness, ctx, shared))
        try:
            await self.setup(agents)
            await self.run(task, agents)
            await self.finalize(task, episode)
        except Exception as error:
            episode.errors.append(str(error))
            return episode
        episode.ok = all(trace.ok for trace in episode.traces)
        return episode


class SingleAgentEnvConfig(EnvConfig):
    agent: AgentConfig = AgentConfig()


class SingleAgentEnv(Env[SingleAgentEnvConfig]):
    async def run(self, task: Any, agents: Any) -> None:
        await agents.agent.run(task)


@asynccontextmanager
async def served(path: str, answer: Callable[[Mapping[str, Any], str], Any]) -> AsyncIterator[str]:
    """A server on loopback; `answer` is given the body and the bearer token of each request. Yields its address."""

    async def handle(request: web.Request) -> web.Response:
        token = request.headers.get("Authorization", "").removeprefix("Bearer ")
        return web.json_response(await answer(await request.json(), token))

    app = web.Application()
    app.router.add_post(path, handle)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def as_modules() -> dict[str, ModuleType]:
    """What sys.modules has to have for `import verifiers.v1`."""
    package, this = ModuleType("verifiers"), sys.modules[__name__]
    vars(package).update(v1=this, __path__=[])
    return {"verifiers": package, "verifiers.v1": this}


def _plugin(name: str, base: type) -> Any:
    """The class of this kind in the module of this name."""
    module = importlib.import_module(name)
    kinds = [getattr(module, each) for each in module.__all__]
    [found] = [kind for kind in kinds if isinstance(kind, type) and issubclass(kind, base)]
    return found


def _argument(found: type, base: type) -> Any:
    """The type argument of this kind that a class gives its generic base; the kind itself if it gives none."""
    given = [each for parent in getattr(found, "__orig_bases__", ()) for each in get_args(parent)]
    return next((each for each in given if isinstance(each, type) and issubclass(each, base)), base)

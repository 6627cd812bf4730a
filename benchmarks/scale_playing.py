"""The control plane over simulated engines, as benchmarks/scale.py describes it; also for benchmarks/soak.py."""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import ray

from actors.arena import Rules
from actors.models import BUILT_IN, load_tokenizer, resolve_model
from actors.policy import Completion, Request, Sampling
from benchmarks.stream_restart import stream_spec
from cluster.buffer.buffer_actor import BufferActor
from cluster.fleet.heartbeats import Heartbeats
from cluster.rollout.arena_actor import ArenaActor
from cluster.rollout.arenas import shares
from cluster.rollout.request_queue import Packed, RequestQueue
from cluster.runtime.ray_session import collect_seldom, ray_session
from cluster.supervision.actor_watch import BEAT_S
from cluster.supervision.tasks import Tasks
from cluster.types import Engine, Seat
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import ClusterConfig, StreamConfig, SupervisionConfig
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.wire import decode, encode
from spag_ray.game.protocol import TABOO
from spag_ray.game.rules import Role, Verdict
from spag_ray.game.styles import game_renderer
from spag_ray.game.turn import Turn
from spag_ray.games.taboo.decks import load_deck
from spag_ray.games.taboo.game import TabooGame
from spag_ray.games.taboo.referee.judge import judge
from spag_ray.training_data.game_samples import game_samples

TOKENS_PER_TURN = 64
TOKENS_PER_S = 50.0
SPREAD = 0.3
GAMES_PER_ENGINE = 64
ENGINES_PER_PROCESS = 16
RULES = Rules(TabooGame(max_turns=4), TABOO)
TALK = (
    "I have been thinking about what you said, and it reminds me of something that most of us meet quite often, though "
    "we rarely stop to look at it; would you tell me where you saw it last, who was there with you, what the weather "
    "was like on that day, and whether you would like to go there again some time soon with all of your friends?"
)


class SleepingPolicy:
    """Gives the same reply after the time an engine would take; the n-th turn's duration is a function of the seed."""

    def __init__(self, reply: tuple[int, ...], seed: str, turn_s: float) -> None:
        self.version = 0
        self._reply = reply
        self._logprobs = (-1.25,) * len(reply)
        self._random = random.Random(seed)
        self._turn_s = turn_s
        self.turns = 0

    async def generate(self, requests: Sequence[Request]) -> list[Completion]:
        (request,) = requests
        return [await self._answer(request)]

    async def _answer(self, request: Request) -> Completion:
        first = self.version
        await asyncio.sleep(self._turn_s * self._random.uniform(1 - SPREAD, 1 + SPREAD))
        self.turns += 1
        return Completion(request.request_id, self._reply, self._logprobs, first, self.version, "length")


class EngineProcess:
    """Some simulated engines in one process."""

    def __init__(self, first: int, count: int, reply: tuple[int, ...], turn_s: float) -> None:
        collect_seldom()
        self._policies: list[Any] = [SleepingPolicy(reply, f"engine {first + n}", turn_s) for n in range(count)]
        self._desks = [RequestQueue(policy) for policy in self._policies]

    async def turns(self) -> int:
        return sum(policy.turns for policy in self._policies)

    async def load(self, version: int) -> None:
        for policy in self._policies:
            policy.version = version

    async def exchange(
        self, number: int, client: str, requests: list[Packed], cancelled: list[str], gather_s: float
    ) -> list[Packed]:
        return await self._desks[number].exchange(client, requests, cancelled, gather_s)

    async def heartbeat(self, number: int, hold_s: float) -> tuple[int, float]:
        await asyncio.sleep(hold_s)
        return self._desks[number].num_pending, self._desks[number].idle_s

    async def num_pending(self) -> int:
        return sum(desk.num_pending for desk in self._desks)


class EngineHandle:
    """One of an EngineProcess's engines, with the interface of an engine's actor."""

    def __init__(self, process: Any, number: int) -> None:
        self.exchange = _Method(process, "exchange", number)
        self.heartbeat = _Method(process, "heartbeat", number)


class _Method:
    def __init__(self, process: Any, name: str, number: int) -> None:
        self._process = process
        self._name = name
        self._number = number

    def remote(self, *arguments: Any) -> Any:
        return getattr(self._process, self._name).remote(self._number, *arguments)


class Plane:
    """A control plane over `num_engines` simulated engines; closing it removes everything."""

    def __init__(
        self,
        num_engines: int,
        num_arenas: int,
        config: StreamConfig,
        games: int,
        turn_s: float,
        episodes: Path | None = None,  # the buffer's folder; a temporary one otherwise
    ) -> None:
        self.folder = tempfile.TemporaryDirectory(prefix="spag_ray-scale-", ignore_cleanup_errors=True)
        self.model = resolve_model(BUILT_IN)
        tokenizer = load_tokenizer(self.model)
        reply = tuple(tokenizer.encode(TALK, add_special_tokens=False)[:TOKENS_PER_TURN])
        assert len(reply) == TOKENS_PER_TURN
        self.buffer = (
            ray.remote(BufferActor).options(num_cpus=0, max_concurrency=1024).remote(str(episodes or self.folder.name))
        )
        self.arenas = [
            ray.remote(ArenaActor)
            .options(num_cpus=0, max_concurrency=1024)
            .remote(f"arena-{n}", f"{self.folder.name}/arena-{n}.log", [RULES], 600.0, 600.0, self.buffer)
            for n in range(num_arenas)
        ]
        process = ray.remote(EngineProcess).options(num_cpus=0, max_concurrency=4096)
        firsts = range(0, num_engines, ENGINES_PER_PROCESS)
        counts = [min(ENGINES_PER_PROCESS, num_engines - first) for first in firsts]
        self.processes = [
            process.remote(first, count, reply, turn_s) for first, count in zip(firsts, counts, strict=True)
        ]
        handles: list[Any] = [
            EngineHandle(self.processes[number // ENGINES_PER_PROCESS], number % ENGINES_PER_PROCESS)
            for number in range(num_engines)
        ]
        self.engines = [Engine(handle, f"engine-{number}", "policy") for number, handle in enumerate(handles)]
        for index, arena in enumerate(self.arenas):
            own = shares(index, num_arenas, num_engines).items()
            changes = [(self.engines[number], share, True) for number, share in own]
            ray.get(arena.share.remote("policy", "policy", changes))
        ray.get(self.buffer.open_stream.remote(stream_spec(config, sorted(load_deck("everyday")))))
        seat = Seat("policy", "policy", Sampling(1.0, TOKENS_PER_TURN), self.model)
        seats = {"attacker": seat, "defender": seat}
        self.plays = [arena.play_stream.remote(seats, games // num_arenas) for arena in self.arenas]

    def turns(self) -> int:
        """Turns that engines have played so far."""
        return sum(ray.get([process.turns.remote() for process in self.processes]))

    def learned(self, version: int) -> None:
        """Mark the taken games as trained on; every engine plays the new version."""
        ray.get([process.load.remote(version) for process in self.processes])
        ray.get(self.buffer.advance.remote({"policy": version}))

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds so far of each kind of process."""
        used: dict[str, float] = {"driver": sum(psutil.Process().cpu_times()[:2])}
        for child in psutil.Process().children(recursive=True):
            try:
                name = " ".join(child.cmdline()).lower()
                times = sum(child.cpu_times()[:2])
            except psutil.Error:
                continue
            kinds = {"arenaactor": "arenas", "engineprocess": "engines", "bufferactor": "buffer"}
            kind = next((kind for part, kind in kinds.items() if part in name), "ray")
            used[kind] = used.get(kind, 0.0) + times
        return used

    def memory_gib(self) -> float:
        total = 0
        for child in [psutil.Process(), *psutil.Process().children(recursive=True)]:
            try:
                total += child.memory_full_info().pss
            except psutil.Error:
                continue
        return total / 2**30

    def close(self) -> None:
        for actor in [*self.arenas, *self.processes, self.buffer]:
            ray.kill(actor)
        self.folder.cleanup()


def learn(batch: list[bytes]) -> int:
    """The learner's work before the first tensor; returns the number of decided games."""
    return len(game_samples([decode(data) for data in batch], ObjectiveConfig()))


def run_scale(num_engines: int, seconds: float, num_arenas: int) -> dict[str, Any]:
    """Turns per second over a window that begins once there were as many turns as the first games have: games end in
    it, and prompts are of all lengths."""
    games = num_engines * GAMES_PER_ENGINE
    # So many permits that nothing waits for one.
    config = StreamConfig(games_per_version=max(games // 4, 1), max_lag=40)
    turn_s = TOKENS_PER_TURN / TOKENS_PER_S
    plane = Plane(num_engines, min(num_arenas, num_engines), config, games, turn_s)
    version = 0
    turns = 0
    started: tuple[float, int, dict[str, float]] | None = None
    while True:
        batch = ray.get(plane.buffer.batch.remote(0.5))
        if batch is not None:
            learn(batch)
            version += 1
            plane.learned(version)
        turns = plane.turns()
        now = time.perf_counter()
        if started is None and turns >= games * 2 * RULES.max_turns:
            started = (now, turns, plane.cpu_s())
        if started is not None and now - started[0] > seconds:
            break
    window = now - started[0]
    rate = (turns - started[1]) / window
    cpu = {kind: used - started[2].get(kind, 0.0) for kind, used in plane.cpu_s().items()}
    memory = plane.memory_gib()
    plane.close()
    ideal = num_engines * GAMES_PER_ENGINE / turn_s
    per_turn = {kind: round(1000 * used / max(turns - started[1], 1), 3) for kind, used in sorted(cpu.items())}
    found = {
        "engines": num_engines,
        "turns_per_s": round(rate, 1),
        "ideal": round(ideal, 1),
        "efficiency": round(rate / ideal, 3),
        "games_per_s": round(rate / (2 * RULES.max_turns), 1),
        "cpu_ms_per_turn": per_turn,
        "cores_busy": round(sum(cpu.values()) / window, 2),
        "memory_gib": round(memory, 2),
    }
    print(json.dumps(found), flush=True)
    return found


def run_overlap(versions: int = 12) -> float:
    """`stream` with 4 engines and a learner of the same speed: games trained on per second, divided by the ideal."""
    turn_s, engines, games_each, per_version = TOKENS_PER_TURN / TOKENS_PER_S, 4, GAMES_PER_ENGINE, 128
    play_rate = engines * games_each / (turn_s * 2 * RULES.max_turns)
    learn_s = per_version / play_rate
    plane = Plane(engines, 1, StreamConfig(games_per_version=per_version, max_lag=4), engines * games_each, turn_s)
    began = None
    for version in range(1, versions + 5):
        while (batch := ray.get(plane.buffer.batch.remote(5.0))) is None:
            pass
        if version == 5:  # the pipeline is full
            began = time.perf_counter()
        learn(batch)
        time.sleep(learn_s)
        plane.learned(version)
    assert began is not None
    rate = versions * per_version / (time.perf_counter() - began)
    plane.close()
    return rate / min(play_rate, per_version / learn_s)


def idle() -> dict[str, Any]:
    """CPU seconds a second of the arenas, the Run's watch, the buffer and Ray while 448 engines in 8 arenas have turns
    under way and answer none: the calls that wait, and the heartbeats. The driver takes the Run's place."""
    num_engines, num_arenas, games = 448, 8, 896
    with ray_session(ClusterConfig(object_store_gib=0.5)):
        plane = Plane(num_engines, num_arenas, StreamConfig(games_per_version=games, max_lag=4), games, turn_s=3600.0)
        watched: list[Engine] = []
        heartbeats = Heartbeats(SupervisionConfig(), lambda: watched, lambda faults: None)
        tasks = Tasks()
        tasks.every(BEAT_S, heartbeats.poll, "heartbeats")
        time.sleep(1.5)
        alone = cores(plane, 5.0)["driver"]  # the driver's own, with no engine to watch
        watched += plane.engines
        while sum(ray.get([process.num_pending.remote() for process in plane.processes])) < games:
            time.sleep(0.5)
        time.sleep(5.0)
        used = cores(plane, 30.0)
        tasks.stop()
        tasks.check()
        plane.close()
    driver = used.pop("driver")
    engines = used.pop("engines")
    return {
        "engines": num_engines,
        "arenas": num_arenas,
        "heartbeats_cores": round(driver - alone, 3),
        **{f"{kind}_cores": round(share, 3) for kind, share in sorted(used.items())},
        "control_plane_cores": round(driver + used["arenas"] + used["buffer"], 3),
        "simulated_engines_cores": round(engines, 3),
    }


def cores(plane: Plane, seconds: float) -> dict[str, float]:
    """CPU seconds a second of each kind of process."""
    before, began = plane.cpu_s(), time.perf_counter()
    time.sleep(seconds)
    window = time.perf_counter() - began
    return {kind: (used - before.get(kind, 0.0)) / window for kind, used in plane.cpu_s().items()}


def example_episode(number: int) -> Episode:
    """A game of 8 turns of 64 tokens, as the arena makes it."""
    renderer = game_renderer(RULES.game, load_tokenizer(resolve_model(BUILT_IN)), "chat")
    reply = tuple(renderer.reply_ids(TALK)[:TOKENS_PER_TURN])
    turns: list[Turn] = []
    for index in range(2 * RULES.max_turns):
        role = Role.ATTACKER if index % 2 == 0 else Role.DEFENDER
        prompt = renderer.prompt(turns, role, "river")
        logprobs = tuple(-random.Random(index).random() for _ in reply)
        turns.append(Turn(role, renderer.text_of(reply), prompt, reply, logprobs, "policy", 3, 3))
    history = [{"role": str(turn.role), "content": turn.text} for turn in turns]
    verdict: Verdict = judge(history, "river", RULES.max_turns, RULES.variant)
    return Episode(f"s/{number}", number, "s", "river", RULES.max_turns, "strict", 1.0, tuple(turns), verdict)


def rate_of(function: Any, *arguments: Any, seconds: float = 1.0) -> float:
    """Calls per second, the best of three measurements."""
    best = 0.0
    for _ in range(3):
        began, calls = time.perf_counter(), 0
        while (now := time.perf_counter()) - began < seconds / 3:
            function(*arguments)
            calls += 1
        best = max(best, calls / (now - began))
    return best


def run_parts() -> dict[str, float]:
    """Microseconds for one call of each step of a turn, and episodes per second through the wire format."""
    episode = example_episode(0)
    data = encode(episode)
    renderer = game_renderer(RULES.game, load_tokenizer(resolve_model(BUILT_IN)), "chat")
    history = episode.history
    turns = episode.turns
    return {
        "encode_per_s": round(rate_of(encode, episode)),
        "decode_per_s": round(rate_of(decode, data)),
        "episode_bytes": len(data),
        "prompt_us": round(1e6 / rate_of(renderer.prompt, turns[:-1], turns[-1].role, "river"), 1),
        "text_us": round(1e6 / rate_of(renderer.text_of, turns[0].token_ids), 1),
        "referee_us": round(1e6 / rate_of(judge, history, "river", RULES.max_turns, RULES.variant), 1),
    }

"""The Run: one actor that owns every other actor of a run, and the verbs that the loop (training.py) is written in.

Run ── engines (EngineActor)   play ──> arenas (ArenaActor) ──> buffer (ReplayBuffer)
    └─ learners (LearnerActor) learn <── buffer;  publish ──> engines
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import ray

from actors.arena import GameTask, Rules
from actors.league import Opponents
from actors.models import load_tokenizer
from actors.policy import Sampling
from cluster.arena_actor import ArenaActor, Engine, Seat
from cluster.buffer import BufferActor, StageCount
from cluster.league_play import LeaguePlay
from cluster.learning_policy import LearningPolicy, Lesson
from cluster.metrics import Metrics
from cluster.remote_policy import EngineActor
from cluster.runtime import get, redirect_output
from cluster.stream_play import Stream
from cluster.weights import Probe
from spag_ray.config import EngineConfig, RunConfig
from spag_ray.episode import Episode
from spag_ray.errors import EngineError
from spag_ray.game import Outcome, Role
from spag_ray.prompts import Renderer, load_template, make_renderer
from spag_ray.samples import GameSample, TurnSample
from spag_ray.wire import decode
from spag_ray.words import WordStream

# A turn that no game played: what learner and engines say of it is compared after every sync.
PROBE = "It is something that most people have seen, though few could say when they last looked at it closely."
Cards = dict[str, tuple[str, ...]]


@dataclass(frozen=True)
class Progress:
    """What a run is doing now, for whoever shows it."""

    stage: str = "starting"
    done: int = 0
    total: int = 0
    unit: str = ""
    seconds: float = 0.0
    num_tokens: int = 0
    outcomes: dict[str, int] = field(default_factory=dict)
    loss: float | None = None
    version: int = 0


@dataclass(frozen=True)
class StageResult:
    """Outcomes of games on held-out words: one policy in both seats, or one against another."""

    attacker: str
    defender: str
    outcomes: dict[Outcome, int]


class Run:
    """`words` are trained on, `held_out` only evaluated on; `model` is a folder."""

    def __init__(
        self,
        config: RunConfig,
        folder: str,
        model: str,
        words: Sequence[str],
        held_out: Sequence[str],
        cards: Cards,
    ) -> None:
        self.folder = Path(folder)
        redirect_output(str(self.folder / "logs" / "run.log"))
        self.config = config
        self.model = model
        self.held_out = list(held_out)
        self.cards = cards
        self.metrics = Metrics(self.folder)
        self.league = LeaguePlay(self)
        # Against other players each word comes twice: the learner attacks with it once, and defends once.
        self.words = WordStream(list(words), config.seed, attacker_seats=2 if self.league.league.is_open else 1)
        self.results: list[StageResult] = []
        self._takes_turns = config.placement == "colocated"
        self._engine_handles: list[Any] = []
        self._engines_lock = threading.Lock()
        self._num_added = 0
        self._progress = Progress()
        self._began = time.perf_counter()
        self._template = load_template(config.prompts)
        self.tokenizer = load_tokenizer(model)
        self.renderer: Renderer = make_renderer(self._template, self.tokenizer, config.game.max_turns)
        probe = Probe(self.renderer.prompt((), Role.ATTACKER, self.held_out[0]), self.renderer.reply_ids(PROBE))
        seats = {"policy": tuple(Role)} if config.policies == "shared" else {str(role): (role,) for role in Role}
        self.policies = [
            LearningPolicy(name, roles, config, self.folder, model, self.metrics, probe)
            for name, roles in seats.items()
        ]
        self._buffer = (
            ray.remote(BufferActor)
            .options(name=f"buffer-{self.folder.name}", num_cpus=0, max_concurrency=1024)
            .remote(str(self.folder / "episodes"))
        )
        rules = Rules(config.game.max_turns, config.game.rules)
        self._arenas = [
            ray.remote(ArenaActor)
            .options(name=f"arena-{self.folder.name}-{index}", num_cpus=0)
            .remote(
                f"arena-{index}",
                self._log(f"arena-{index}"),
                self._template,
                rules,
                config.engine.turn_timeout_s,
                self._buffer,
            )
            for index in range(config.self_play.num_arenas)
        ]

    def train(self) -> list[StageResult]:
        """The whole of SPAG; see training.py."""
        from cluster.training import train

        try:
            return train(self)
        finally:
            self.close()

    def play_only(self, attacker: str, defender: str, words: Sequence[str]) -> list[dict[str, Any]]:
        """One game a word between two model folders (which may be the same); games in the published format."""
        try:
            temperature = self.config.sampling.temperature
            self.say("starting engines")
            self.start_engines(attacker, "attacker", "attacker", 1)
            seat = other = self.seat("attacker", "attacker", attacker, temperature)
            if defender != attacker:
                self.start_engines(defender, "defender", "defender", 1)
                other = self.seat("defender", "defender", defender, temperature)
            return [episode.as_published() for episode in self.play("play", words, seat, other)]
        finally:
            self.close()

    def learn_only(self, method: str, games: Sequence[GameSample], sft: Sequence[TurnSample], out: str) -> None:
        """One pass over samples from a file; the model is written to `out`."""
        try:
            self.say("starting the learner")
            (policy,) = self.policies
            policy.start_learners()
            imitating = method == "imitation"
            part = self.config.imitation if imitating else self.config.self_play
            kl_coeff = self.config.imitation.kl_coeff if imitating else self.config.objective.kl_coeff
            self.learn(Lesson("learn", method, games, sft, part.batch_games, part.learning_rate, kl_coeff))
            assert policy.learners is not None
            policy.learners.save_model(out)
        finally:
            self.close()

    def status(self) -> Progress:
        return replace(self._progress, seconds=time.perf_counter() - self._began)

    def start_engines(self, model: str, pool: str, policy: str, count: int, label: str | None = None) -> list[Engine]:
        """`count` engines that play `model` in `pool`, stamped as `policy`; all up and known to every arena when this
        returns."""
        engines = self._start_engines(model, pool, count, label or pool)
        for engine in engines:
            self._join(engine, policy)
        return engines

    def start_policies(self) -> None:
        """The engines and learner groups of every policy that learns; colocated, only the engines are awake then."""
        for policy in self.policies:
            policy.engines = self.start_engines(policy.model, policy.name, policy.name, self.config.engine.num_engines)
        if self._takes_turns:
            self.all_engines("sleep")
        for policy in self.policies:
            policy.start_learners()
            if self._takes_turns:
                policy.sleep_learners()
        if self._takes_turns:
            self.all_engines("wake")

    def add_engine(self, policy_name: str = "policy") -> str:
        """One more engine for a policy that learns, while it plays; returns the engine's name. It plays once it has
        the newest published weights: at once, or after the next sync where learners send weights themselves."""
        (policy,) = (policy for policy in self.policies if policy.name == policy_name)
        self._num_added += 1
        (engine,) = self._start_engines(policy.model, policy.name, 1, f"{policy.name}-added-{self._num_added}")
        with self._engines_lock:
            if policy.catch_up(engine):
                self._joins_in(engine, policy)
        return engine.name

    def remove_engine(self, name: str) -> None:
        """Take an engine out while it plays: what it was asked is asked of others."""
        with self._engines_lock:
            policy, engine = next((p, e) for p in self.policies for e in p.engines if e.name == name)
            policy.engines.remove(engine)
            self._drop(engine)
        ray.wait([engine.handle.close.remote()], timeout=20)
        ray.kill(engine.handle)
        self._engine_handles.remove(engine.handle)
        self.metrics.record("engine_left", engine=name, policy=policy.name)

    def drain(self, engine: Engine) -> None:
        """Give an engine no new game, and wait until it has none."""
        get([arena.drain.remote(engine) for arena in self._arenas])

    def reopen(self, engine: Engine) -> None:
        get([arena.reopen.remote(engine) for arena in self._arenas])

    def _start_engines(self, model: str, pool: str, count: int, label: str) -> list[Engine]:
        config = self._engine_config()
        actor = ray.remote(EngineActor)
        engines = []
        for index in range(count):
            name = f"engine-{label}-{index}"
            handle = actor.options(
                name=f"{name}-{self.folder.name}",
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                max_concurrency=4096,
            ).remote(self._log(name))
            engines.append(Engine(handle, name, pool))
        starts = [
            engine.handle.start.remote(
                model, config, engine.name, 0, self.config.seed + index, self.config.sync.channel
            )
            for index, engine in enumerate(engines)
        ]
        try:
            get(starts, config.start_timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise EngineError(
                f"no engine after engine.start_timeout_s ({config.start_timeout_s:.0f} s); see {self.folder}/logs"
            ) from error
        self._engine_handles.extend(engine.handle for engine in engines)
        return engines

    def _join(self, engine: Engine, policy: str) -> None:
        get([arena.join.remote(engine, policy) for arena in self._arenas])

    def _joins_in(self, engine: Engine, policy: LearningPolicy) -> None:
        self._join(engine, policy.name)
        self.metrics.record("engine_joined", engine=engine.name, policy=policy.name, version=policy.version)

    def _drop(self, engine: Engine) -> None:
        get([arena.drop.remote(engine) for arena in self._arenas])

    def all_engines(self, call: str, *arguments: str) -> None:
        """`sleep` or `wake` every engine of the run; one that is dead is found at the next sync."""
        for ref in [getattr(handle, call).remote(*arguments) for handle in self._engine_handles]:
            with contextlib.suppress(ray.exceptions.RayActorError):
                get(ref)

    def policy_of(self, role: Role) -> LearningPolicy:
        return next(policy for policy in self.policies if role in policy.roles)

    def close(self) -> None:
        """End every actor of the run; engines first close their child processes."""
        closing = [handle.close.remote() for handle in self._engine_handles]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=20)
        for policy in self.policies:
            policy.close_learners()
        for handle in [*self._arenas, *self._engine_handles, self._buffer]:
            ray.kill(handle)
        self._engine_handles, self._arenas = [], []
        self.metrics.close()

    def seat(self, pool: str, policy: str, model: str, temperature: float) -> Seat:
        sampling = self.config.sampling
        return Seat(pool, policy, Sampling(temperature, sampling.max_new_tokens, sampling.top_k, sampling.top_p), model)

    def policy_seat(self, role: Role, temperature: float) -> Seat:
        """The newest weights of the policy that learns to play `role`."""
        policy = self.policy_of(role)
        return self.seat(policy.name, policy.name, policy.model, temperature)

    def expert_seat(self) -> Seat:
        return Seat("expert", "scripted", Sampling(), self.model, self.cards)

    def play(self, stage: str, words: Sequence[str], attacker: Seat, defender: Seat) -> list[Episode]:
        """One game a word; the judged episodes, in the order of the words."""
        return self.play_seats(stage, words, {"attacker": attacker, "defender": defender}, Opponents(self.config.seed))

    def self_play(self, stage: str, words: Sequence[str]) -> list[Episode]:
        """One game a word by the newest weights, against themselves and whom the league has drawn."""
        return self.play_seats(stage, words, self._self_play_seats(), self.league.opponents())

    def play_seats(
        self, stage: str, words: Sequence[str], seats: Mapping[str, Seat], opponents: Opponents
    ) -> list[Episode]:
        tasks = [
            GameTask(number, word, stage, self.config.seed, *opponents(number)) for number, word in enumerate(words)
        ]
        began = time.perf_counter()
        shares = [tasks[index :: len(self._arenas)] for index in range(len(self._arenas))]
        plays = [
            arena.play.remote(share, seats, self.config.self_play.games_in_flight)
            for arena, share in zip(self._arenas, shares, strict=True)
            if share
        ]
        waiting = plays
        while waiting:
            _, waiting = ray.wait(waiting, num_returns=len(waiting), timeout=0.5)
            self.show_play(stage, len(tasks), get(self._buffer.count.remote(stage)))
        get(plays)
        seconds = time.perf_counter() - began
        count: StageCount = get(self._buffer.count.remote(stage))
        self.metrics.record(
            "play",
            stage=stage,
            version=self.version,
            games=count.num_games,
            turns=count.num_turns,
            tokens=count.num_tokens,
            seconds=round(seconds, 3),
            games_per_s=round(count.num_games / seconds, 3),
            tokens_per_s=round(count.num_tokens / seconds, 1),
            **{str(outcome): number for outcome, number in count.outcomes.items()},
        )
        return [decode(data) for data in get(self._buffer.take.remote(stage))]

    def _self_play_seats(self) -> dict[str, Seat]:
        temperature = self.config.sampling.temperature
        return {str(role): self.policy_seat(role, temperature) for role in Role} | self.league.seats

    @contextlib.contextmanager
    def streaming(self) -> Iterator[Stream]:
        """Arenas that play without end, as far as permits go, while the block learns."""
        seats, opponents = self._self_play_seats(), self.league.opponents()
        versions = {policy.name: policy.version for policy in self.policies}
        get(self._buffer.open_stream.remote(self.words, self.config.stream, versions, self.config.seed, opponents))
        plays = [arena.play_stream.remote(seats, self.config.self_play.games_in_flight) for arena in self._arenas]
        try:
            yield Stream(self, self._buffer, plays)
            get(self._buffer.close_stream.remote())
            for arena in self._arenas:
                arena.stop_stream.remote()
            get(plays)
        except ray.exceptions.RayError:
            get([play for play in plays if ray.wait([play], timeout=0)[0]])  # the arenas know the cause, if they ended
            raise

    def evaluate(self, name: str, attacker: Seat, defender: Seat, stage: str, names: tuple[str, str]) -> StageResult:
        """Games on the held-out words, each word equally often; the result is kept and written down."""
        words = [self.held_out[index % len(self.held_out)] for index in range(self.config.evaluation.games)]
        episodes = self.play(stage, words, attacker, defender)
        outcomes = Counter(episode.verdict.outcome for episode in episodes)
        result = StageResult(*names, dict(outcomes))
        self.results.append(result)
        rows = [asdict(each) for each in self.results]
        (self.folder / "matches.json").write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
        return result

    def learn(self, lesson: Lesson) -> None:
        """Every policy learns its part. Colocated, engines then sleep until `publish`, and learners wake."""
        if self._takes_turns:
            self.all_engines("sleep")
            for policy in self.policies:
                policy.wake_learners()
        for policy in self.policies:
            policy.learn(lesson, self._show_step)

    def publish(self) -> None:
        """The learners' weights to the engines. Colocated, weights leave the learners before they sleep, and engines
        are awake before they take them; where learners send weights themselves, both have to hold weights meanwhile."""
        direct = self.config.sync.channel != "object_store"
        for policy in self.policies:
            policy.export()
        if self._takes_turns:
            for policy in self.policies:
                policy.sleep_learners(keep_weights=direct)
            self.all_engines("wake", "weights" if direct else "all")
        with self._engines_lock:
            for policy in self.policies:
                joining = list(policy.waiting)
                self._forget(policy, policy.publish(self))
                for engine in set(joining) & set(policy.engines):
                    self._joins_in(engine, policy)
            if self._takes_turns and direct:
                for policy in self.policies:
                    policy.sleep_learners()
                self.all_engines("wake", "kv_cache")
            for policy in self.policies:
                self._forget(policy, policy.prove())

    def _forget(self, policy: LearningPolicy, lost: Sequence[Engine]) -> None:
        for engine in lost:
            self._drop(engine)
            self._engine_handles.remove(engine.handle)
            self.metrics.record("engine_lost", engine=engine.name, policy=policy.name)
            self.say(f"{engine.name} is gone; {len(policy.engines)} left")

    def save(self, stage: str) -> dict[str, str]:
        """{policy: its model folder}"""
        return {policy.name: policy.save(stage) for policy in self.policies}

    @property
    def version(self) -> int:
        return self.policies[0].version

    def say(self, stage: str) -> None:
        self._progress = Progress(stage, version=self.version)

    def _show_step(self, stage: str, done: int, total: int, loss: float | None) -> None:
        self._progress = Progress(stage, done, total, "steps", loss=loss, version=self.version)

    def show_play(self, stage: str, total: int, count: StageCount) -> None:
        self._progress = Progress(
            f"{stage}: play",
            count.num_games,
            total,
            "games",
            num_tokens=count.num_tokens,
            outcomes={str(outcome): number for outcome, number in count.outcomes.items()},
            version=self.version,
        )

    def _engine_config(self) -> EngineConfig:
        lora = self.config.learner.lora
        if lora is None or lora.export == "merged":
            return self.config.engine
        return self.config.engine.model_copy(update={"max_lora_rank": lora.rank})

    def _log(self, name: str) -> str:
        return str(self.folder / "logs" / f"{name}.log")

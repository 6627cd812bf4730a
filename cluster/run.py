"""The Run: one actor that owns every other actor of a run, and the verbs that the loop (training.py) is written in.

Run ── engines (EngineActor)   play ──> arenas (ArenaActor) ──> buffer (ReplayBuffer)
    └─ learners (LearnerActor) learn <── buffer;  publish ──> engines
"""

from __future__ import annotations

import contextlib
import json
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray

from actors.arena import Rules
from actors.league import Opponents
from actors.models import load_tokenizer
from actors.policy import Sampling
from cluster.arena_actor import Seat
from cluster.arenas import Arenas
from cluster.buffer import BufferActor, BufferHealth, StreamSpec
from cluster.engines import Engines
from cluster.evaluation import TaskEvaluation
from cluster.league_play import LeaguePlay
from cluster.learning_policy import LearningPolicy
from cluster.lesson import Lesson
from cluster.meter import BufferMeter
from cluster.metrics import Metrics
from cluster.places import Places, places_of
from cluster.progress import Progress
from cluster.recovery import Recovery
from cluster.room import Bundle, bundles_of
from cluster.round_play import play_round
from cluster.runtime import ClusterError, get, redirect_output
from cluster.stream_play import Stream
from cluster.supervisor import Restarts
from cluster.visits import Visits
from cluster.weights import Probe
from spag_ray.config import RunConfig
from spag_ray.episode import Episode
from spag_ray.episode_log import write_atomically
from spag_ray.errors import StopRequestedError
from spag_ray.evaluations import Evaluation
from spag_ray.game import Role
from spag_ray.game_count import GameCount
from spag_ray.matches import Match, write_matches
from spag_ray.prompts import Renderer, load_template, make_renderer
from spag_ray.samples import GameSample, TurnSample
from spag_ray.words import WordStream

if TYPE_CHECKING:
    from cluster.tournament import Entrant

# A turn that no game played: what learner and engines say of it is compared after every sync.
PROBE = "It is something that most people have seen, though few could say when they last looked at it closely."
MAX_NOTES = 50
Cards = dict[str, tuple[str, ...]]


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
        self._notes: deque[str] = deque(maxlen=MAX_NOTES)
        self._num_notes = 0
        self.metrics = Metrics(self.folder, config.tracking, self.note)
        self.recovery = Recovery(self)
        self.league = LeaguePlay(self)
        # Against other players each word comes twice: the learner attacks with it once, and defends once.
        self.words = WordStream(list(words), config.seed, attacker_seats=2 if self.league.league.is_open else 1)
        self.results: list[Match] = []  # of games on held-out words
        self._beside: list[Match] = []  # in the run's matches.json, played by others (`match --stages`)
        self.takes_turns = config.placement == "colocated"
        self.stop_at: float | None = None
        self._progress = Progress()
        self.is_paused = False
        self._lesson: Lesson | None = None
        self._began = time.perf_counter()
        self._template = load_template(config.prompts)
        self.tokenizer = load_tokenizer(model)
        self.renderer: Renderer = make_renderer(self._template, self.tokenizer, config.game.max_turns)
        probe = Probe(self.renderer.prompt((), Role.ATTACKER, self.held_out[0]), self.renderer.reply_ids(PROBE))
        seats = {"policy": tuple(Role)} if config.policies == "shared" else {str(role): (role,) for role in Role}
        self.places = Places(config.cluster, places_of(self.folder), self.note, self.check_stop)
        self.policies = [
            LearningPolicy(name, roles, config, self.folder, model, self.metrics, probe, self.places)
            for name, roles in seats.items()
        ]
        self.restarts = Restarts(config.supervision, self.metrics, self.note)
        self.buffer = (
            ray.remote(BufferActor)
            .options(
                name=f"buffer-{self.folder.name}",
                num_cpus=0,
                max_concurrency=1024,
                max_restarts=config.supervision.max_restarts,
                max_task_retries=-1,
            )
            .remote(str(self.folder / "episodes"))
        )
        self._buffer_health: BufferHealth | None = None
        self.meter = BufferMeter(self.buffer, self.metrics, config.stream.max_lag)
        rules = Rules(config.game.max_turns, config.game.rules)
        self.arenas = Arenas(
            self.folder.name,
            str(self.folder / "logs"),
            config.self_play.num_arenas,
            self._template,
            rules,
            config.engine.turn_timeout_s,
            self.buffer,
        )
        self.engines = Engines(config, self.folder, self.arenas, self.metrics, self.restarts, self.places)
        self.task_evaluation = TaskEvaluation(self)

    def __repr__(self) -> str:
        """What Ray's pages and messages call it."""
        return f"run-{self.folder.name}"

    def train(self) -> list[Match]:
        """The whole of SPAG; see training.py."""
        from cluster.training import train

        with self._ending():
            return train(self)

    def play_only(self, attacker: str, defender: str, words: Sequence[str]) -> list[dict[str, Any]]:
        """One game a word between two model folders (which may be the same); games in the published format."""
        with self._ending():
            temperature = self.config.sampling.temperature
            self._reserve_engines(len({attacker, defender}))
            self.say("starting engines")
            self.engines.start(attacker, "attacker", "attacker", 1)
            seat = other = self.seat("attacker", "attacker", attacker, temperature)
            if defender != attacker:
                self.engines.start(defender, "defender", "defender", 1)
                other = self.seat("defender", "defender", defender, temperature)
            return [episode.as_published() for episode in self.play("play", words, seat, other)]

    def match_only(self, entrants: Sequence[Entrant], against: str | None, played: Sequence[Match]) -> list[Match]:
        """Matches between players that do not learn, beside those that were `played` already."""
        from cluster.tournament import play_tournament

        with self._ending():
            self.results = list(played)
            if any(entrant.folder for entrant in entrants):
                self._reserve_engines(2 * self.config.engine.num_engines)  # of either seat
            return play_tournament(self, entrants, against)

    def learn_only(self, method: str, games: Sequence[GameSample], sft: Sequence[TurnSample], out: str) -> None:
        """One pass over samples from a file; the model is written to `out`."""
        with self._ending():
            learner = self.config.learner
            self.places.reserve([Bundle("learner", learner.num_cpus, learner.num_gpus)] * learner.num_ranks)
            self.say("starting the learner")
            (policy,) = self.policies
            policy.start_learners()
            imitating = method == "imitation"
            part = self.config.imitation if imitating else self.config.self_play
            kl_coeff = self.config.imitation.kl_coeff if imitating else self.config.objective.kl_coeff
            self.learn(Lesson("learn", method, games, sft, part.batch_games, part.learning_rate, kl_coeff))
            assert policy.learners is not None
            policy.learners.save_model(out)

    def evaluate_only(self, model: str, stage: str) -> list[Evaluation]:
        """The configured tasks, of a model folder; `stage` is what its rows are called."""
        with self._ending():
            self._reserve_engines(self.config.engine.num_engines)
            self.say("starting engines")
            self.engines.start(model, "evaluated", "evaluated", self.config.engine.num_engines)
            self.task_evaluation.evaluate(stage, "evaluated", model, lambda: self.engines.of("evaluated"))
            return self.task_evaluation.rows

    def train_alone(self) -> None:
        """Of a Run that nobody waits for (console.launch): it ends itself, and with it all that it owns."""
        try:
            self.train()
        finally:
            ray.actor.exit_actor()

    def visit(self, what: str, *arguments: Any) -> Any:
        """What a session asks; see Visits."""
        return getattr(Visits(self), what)(*arguments)

    def described(self) -> dict[str, Any]:
        """The configuration, and where the run is."""
        return {"config": self.config.model_dump(mode="json"), "folder": str(self.folder)}

    def pause(self) -> None:
        """Begin no game and no learner step until `resume`; what is under way comes to its end."""
        self.is_paused = True
        self.arenas.pause(True)

    def resume(self) -> None:
        self.is_paused = False
        self.arenas.pause(False)

    def save_soon(self) -> None:
        """Write a checkpoint at the next place where one can be written."""
        self.recovery.is_wanted = True

    def stop_soon(self, seconds: float) -> None:
        """Stop at the next place where nothing is lost by it; `seconds` are left until the end of this process."""
        self.stop_at = time.monotonic() + seconds

    def check_stop(self) -> None:
        """Waits while the run is paused. Raises StopRequestedError once somebody has asked for it."""
        while self.is_paused and self.stop_at is None:
            time.sleep(0.1)
        if self.stop_at is not None:
            raise StopRequestedError("the run was asked to stop")

    def status(self) -> Progress:
        seconds = time.perf_counter() - self._began
        progress = replace(self._progress, seconds=seconds, is_paused=self.is_paused)
        return replace(progress, notes=tuple(self._notes), num_notes=self._num_notes)

    def note(self, text: str) -> None:
        """A line that whoever watches the run is shown once."""
        self._notes.append(text)
        self._num_notes += 1

    def start_policies(self) -> None:
        """The engines and learner groups of every policy that learns, once there is room for all of them."""
        self.say("waiting for room")
        self.places.reserve(bundles_of(self.config))
        self.say("starting engines and learner")
        for policy in self.policies:
            count = self.config.engine.num_engines
            policy.engines = self.engines.start(policy.model, policy.name, policy.name, count, policy)
        self.start_learners()

    def start_learners(self) -> None:
        """Colocated, they sleep when this returns, and the engines are awake."""
        if self.takes_turns:
            self.engines.all("sleep")
        for policy in self.policies:
            policy.start_learners()
            if self.takes_turns:
                policy.sleep_learners()  # before the next one's need the room
        self.wake_engines()

    def end_learning(self) -> None:
        """Everything is learned: engines may have the learners' places."""
        for policy in self.policies:
            policy.close_learners()
        self.places.learners_are_done()

    def _reserve_engines(self, count: int) -> None:
        engine = self.config.engine
        self.places.reserve([Bundle("engine", engine.num_cpus, engine.num_gpus)] * count)

    def go_back_to(self, words: WordStream, results: Sequence[Mapping[str, Any]], beside: Sequence[Match]) -> None:
        """The words given out so far, and what has been evaluated, are these; what was played `beside` stays."""
        self.words = words
        self.results = [Match.from_json(row) for row in results]
        self._beside = list(beside)

    def add_engine(self, policy_name: str = "policy") -> str:
        """One more engine for a policy that learns, while it plays; see Engines.add."""
        (policy,) = (policy for policy in self.policies if policy.name == policy_name)
        return self.engines.add(policy)

    def remove_engine(self, name: str) -> None:
        self.engines.remove(name)

    def policy_of(self, role: Role) -> LearningPolicy:
        return next(policy for policy in self.policies if role in policy.roles)

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """After the block everything is closed, and ended.json says how it ended."""
        end = {"ended": "finished"}
        try:
            yield
        except BaseException as error:
            end = {"ended": "stopped" if isinstance(error, StopRequestedError) else "failed", "reason": str(error)}
            raise
        finally:
            self.close()
            with contextlib.suppress(OSError):  # on a full disk, which is then what is raised
                write_atomically(self.folder / "ended.json", json.dumps(end, indent=1) + "\n")

    def close(self) -> None:
        """End every actor of the run; engines first close their child processes."""
        self.engines.close()
        for policy in self.policies:
            policy.close_learners()
        self.places.close()
        self.arenas.close()
        ray.kill(self.buffer)
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
        seats = {"attacker": attacker, "defender": defender}
        return play_round(self, stage, words, seats, Opponents(self.config.seed))

    def self_play(self, stage: str, words: Sequence[str]) -> list[Episode]:
        """One game a word by the newest weights, against themselves and whom the league has drawn."""
        return play_round(self, stage, words, self._self_play_seats(), self.league.opponents())

    def look_around(self) -> None:
        """Whoever waits for play does this meanwhile. Raises what the watch over the engines could not mend,
        LearnersLostError, and StopRequestedError."""
        self.check_stop()
        self.engines.watch.check()
        self._look_at_buffer()
        self.meter.look()
        for policy in self.policies:
            policy.check_learners()
        with self.engines.lock:
            for policy in self.policies:
                for engine in policy.admit():
                    self.engines.joined(policy, engine)

    def _look_at_buffer(self) -> None:
        """Ray starts it again by itself, and it reads its logs by itself: what came of that is counted here."""
        before, health = self._buffer_health, get(self.buffer.health.remote())
        self._buffer_health = health
        if before is not None and before.pid != health.pid:
            self.restarts.count("buffer", ClusterError("its process ended, and Ray has started another"))
        for stage, damage in health.damage.items():
            if before is None or before.damage.get(stage) != damage:
                self.metrics.record("log_damage", stage=stage, damage=damage)

    def _self_play_seats(self) -> dict[str, Seat]:
        temperature = self.config.sampling.temperature
        return {str(role): self.policy_seat(role, temperature) for role in Role} | self.league.seats

    @contextlib.contextmanager
    def streaming(self, cursor: Mapping[str, Any] | None = None) -> Iterator[Stream]:
        """Arenas that play without end, as far as permits go, while the block learns. `cursor`: of a stream that goes
        on."""
        seats, opponents = self._self_play_seats(), self.league.opponents()
        versions = {policy.name: policy.version for policy in self.policies}
        spec = StreamSpec(self.words, self.config.stream, self.config.seed, opponents, versions)
        get(self.buffer.open_stream.remote(spec, None if cursor is None else {**cursor, "versions": versions}))
        self.meter.look(now=True)
        stream = Stream(self, seats)
        try:
            yield stream
        finally:
            with contextlib.suppress(ray.exceptions.RayActorError):  # gone for good: then that is what is raised
                get(self.buffer.close_stream.remote())
            stream.stop()

    def evaluate(self, attacker: Seat, defender: Seat, stage: str, names: tuple[str, str]) -> Match:
        """Games on the held-out words, each word equally often; the result is kept and written down. What an earlier
        life of this run has evaluated is not played again."""
        for done in self.results:
            if (done.attacker, done.defender) == names:
                return done
        words = [self.held_out[index % len(self.held_out)] for index in range(self.config.evaluation.games)]
        episodes = self.play(stage, words, attacker, defender)
        match = Match.of(*names, episodes)
        self.results.append(match)
        own = {(each.attacker, each.defender) for each in self.results}
        beside = [each for each in self._beside if (each.attacker, each.defender) not in own]
        write_matches(self.folder / "matches.json", self.results + beside)
        return match

    def learn(self, lesson: Lesson) -> None:
        """Every policy learns its part."""
        self.wake_learners()
        self._lesson = lesson
        for policy in self.policies:
            policy.learn(lesson, self._show_step)
        for policy in self.policies:
            policy.under_way = None

    def wake_engines(self) -> None:
        """Colocated, learners sleep meanwhile."""
        if self.takes_turns:
            for policy in self.policies:
                policy.sleep_learners()
            self.engines.all("wake")

    def wake_learners(self) -> None:
        """Colocated, engines sleep meanwhile, until `publish` or `wake_engines`."""
        if self.takes_turns:
            self.engines.all("sleep")
            for policy in self.policies:
                policy.wake_learners()

    def results_as_json(self) -> list[dict[str, Any]]:
        return [match.as_json() for match in self.results]

    def publish(self) -> None:
        """The learners' weights to the engines. Colocated, weights leave the learners before they sleep, and engines
        are awake before they take them; where learners send weights themselves, both have to hold weights meanwhile."""
        direct = self.config.sync.channel != "object_store"
        self.recovery.note_published({policy.name: policy.version + 1 for policy in self.policies})
        with self.engines.lock:
            for policy in self.policies:
                policy.export()
            if self.takes_turns:
                for policy in self.policies:
                    policy.sleep_learners(keep_weights=direct)
                self.engines.all("wake", "weights" if direct else "all")
            for policy in self.policies:
                joining = list(policy.waiting)
                self.engines.lost(policy, policy.publish(self.arenas))
                for engine in set(joining) & set(policy.engines):
                    self.engines.joined(policy, engine)
            if self.takes_turns and direct:
                for policy in self.policies:
                    policy.sleep_learners()
                self.engines.all("wake", "kv_cache")
            for policy in self.policies:
                self.engines.lost(policy, policy.prove())

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
        self.meter.look()
        if self._lesson is not None:
            self.recovery.between_steps(self._lesson)

    def show_task(self, stage: str, done: int, total: int) -> None:
        self._progress = Progress(stage, done, total, "answers", version=self.version)

    def show_play(self, stage: str, total: int, count: GameCount) -> None:
        self._progress = Progress(
            f"{stage}: play",
            count.num_games,
            total,
            "games",
            num_tokens=count.num_tokens,
            outcomes={str(outcome): number for outcome, number in count.outcomes.items()},
            version=self.version,
        )

"""The parts of a run, built from its configuration: what plays, what trains, and what keeps the run alive."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import ray

from actors.arena import Rules
from actors.models import load_tokenizer
from cluster.buffer.buffer_actor import Buffer, BufferActor, BufferHandle, BufferHealth
from cluster.buffer.buffer_metrics import BufferMetrics
from cluster.fleet.drained_nodes import DrainedNodes
from cluster.fleet.elastic_engines import ElasticEngines
from cluster.fleet.engine_meter import EngineMeter
from cluster.fleet.fleet import Fleet
from cluster.fleet.publisher import Publisher
from cluster.learning.learning_policy import LearningPolicy
from cluster.learning.stage_samples import StageSamples
from cluster.learning.weight_sync import Probe
from cluster.monitor.status_board import StatusBoard
from cluster.planning.reservation import Reservation, reservation_of
from cluster.rollout.arenas import Arenas
from cluster.runtime.output_files import label_of
from cluster.runtime.ray_session import ClusterError
from cluster.runtime.without_torch import without_torch
from cluster.schedules.collapse_watch import CollapseWatch
from cluster.schedules.exploitability import Exploitability
from cluster.schedules.frozen import FrozenOpponents
from cluster.schedules.held_out import HeldOutMatches
from cluster.schedules.league import LeaguePlay
from cluster.schedules.playground import Playground
from cluster.schedules.seating import Seating
from cluster.schedules.task_evaluation import TaskEvaluation
from cluster.supervision.actor_watch import ActorWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.callbacks import Callbacks
from cluster.tracking.recorder import Recorder
from cluster.tracking.time_split import TimeSplit
from spag_ray.config.run import RunConfig
from spag_ray.errors import StopRequestedError
from spag_ray.game.protocol import SEATS, Game, Solved, guesser_of, seat_to_move
from spag_ray.game.renderer import Renderer
from spag_ray.game.rules import Role
from spag_ray.game.words import WordsOfGame, WordStream
from spag_ray.games.registry import Scenarios, renderer_of
from spag_ray.games.taboo.decks import Deck
from spag_ray.host.folder_lease import FolderLease, Heartbeat
from spag_ray.results.game_names import NamesByGame, names_by_game, names_of_all, write_names
from spag_ray.results.lines import LogDamageLine

# A fixed turn that is not from a game: learner and engines score it after every sync, and the scores are compared.
PROBE = "It is something that most people have seen, though few could say when they last looked at it closely."


class Prepared(NamedTuple):
    """A run's inputs besides its configuration and its folder: a model's folder, words to train on and words that are
    only evaluated on, the cards of the scripted expert, and the folders of seats that start with another model."""

    model: str
    words: Scenarios
    held_out: Scenarios
    cards: Deck
    seat_models: Mapping[Role, str] = {}


class RunControl:
    """The requests to pause or to stop one run: sessions set them, the loop checks them."""

    def __init__(self, lease: FolderLease) -> None:
        self.lease = lease
        self.is_paused = False
        self.is_save_wanted = False
        self._stop_at: float | None = None

    def save_soon(self) -> None:
        """Write a checkpoint at the next point where one can be written."""
        self.is_save_wanted = True

    def stop_soon(self, seconds: float) -> None:
        """Stop at the next point where nothing is lost; this process ends in `seconds`."""
        self._stop_at = time.monotonic() + seconds

    @property
    def is_to_stop(self) -> bool:
        return self._stop_at is not None

    @property
    def is_waiting(self) -> bool:
        """Paused, and no stop is requested."""
        return self.is_paused and not self.is_to_stop

    @property
    def seconds_left(self) -> float:
        """Until this process ends, once a stop is requested; 0 before the request and after the end."""
        return 0.0 if self._stop_at is None else max(0.0, self._stop_at - time.monotonic())

    def check_stop(self) -> None:
        """Wait while the run is paused. Raises StopRequestedError once a stop is requested, and LeaseLostError when
        another run has taken the folder."""
        self.lease.check()
        while self.is_waiting:
            time.sleep(0.1)
            self.lease.check()
        if self.is_to_stop:
            raise StopRequestedError("the run was asked to stop")


class RunParts:
    """What Run, Trainer and Recovery use; every other part gets only what it uses itself.

    `control` has the lease of the run folder. `words` are trained on; `cards` are the expert's. `watch` covers the
    arenas and the buffer; engines have heartbeats of their own. `exploitability`: one for each solved game.
    """

    _buffer_health: BufferHealth | None = None  # when it was polled last

    def __init__(self, config: RunConfig, lease: FolderLease, prepared: Prepared, rules: Sequence[Rules]) -> None:
        """With the arenas and the buffer started; engines and learners are started later. The arguments are those of
        Run."""
        model, words, held_out, cards, seat_models = prepared
        self.config, self.control, self.cards = config, RunControl(lease), cards
        games = {each.name: each.game for each in rules}
        names = names_by_game(config, games)
        self._track(lease, games, names)
        with without_torch(games.values()):
            tokenizer = load_tokenizer(model, config.chat_template_kwargs)
        renderers = {
            each.game.full_name: renderer_of(each, tokenizer, games[each.game.full_name]) for each in config.each_game
        }
        first = config.games[0].full_name
        models = {role: seat_models.get(role, model) for role in Role}
        self._learn(lease, models, _probe(renderers[first], held_out[first][0]))
        self._play(lease, rules)
        self._loop()
        self.words = _word_stream(config, words)
        self.seating = Seating(config, self.policies, model, cards)
        self.league = LeaguePlay(
            config, lease, self.policies, publisher=self.publisher, seating=self.seating, recorder=self.recorder
        )
        guessing = next((game.full_name for game in config.games if game.guesses), first)
        self.samples = StageSamples(
            config,
            tokenizer,
            renderers[guessing],
            {policy.name for policy in self.policies},
            self.recorder,
            held_out=held_out[guessing],
            note=self.status.note,
        )
        self.matches = HeldOutMatches(self.ground, lease, held_out)
        guesser = guesser_of(games[guessing]) or Role.DEFENDER
        self.frozen = FrozenOpponents(config, self.publisher, self.seating, self.matches, self.status, guesser=guesser)
        self.collapse = CollapseWatch(
            config, lease.folder, self.matches, recorder=self.recorder, status=self.status, games=names
        )
        self.exploitability = [
            Exploitability(self.ground, name, game, renderers[name], self.policies)
            for name, game in games.items()
            if isinstance(game, Solved)
        ]
        self.tasks = TaskEvaluation(self.ground, lease, self.policies, self.restarts)

    def _track(self, lease: FolderLease, games: Mapping[str, Game], names: NamesByGame) -> None:
        """What the others report to, and what grants them restarts and devices."""
        config, folder = self.config, lease.folder
        self.status = status = StatusBoard(lambda: self.policies[0].version, names_of_all(names))
        write_names(folder, config, games)
        Heartbeat(lease, status.note)  # until this process ends
        self.callbacks = Callbacks(config.tracking.callbacks, status.note)
        self.recorder = Recorder(folder, config.tracking, status.note, lease.check, names, hear=self.callbacks.hear)
        self.restarts = RestartBudget(config.supervision, self.recorder, status.note)
        self.reservation = Reservation(config.cluster, reservation_of(folder), status.note, self.control.check_stop)

    def _learn(self, lease: FolderLease, models: Mapping[Role, str], probe: Probe) -> None:
        config = self.config
        seats = {"policy": tuple(Role)} if config.policies == "shared" else {str(role): (role,) for role in Role}
        self.policies = [
            LearningPolicy(
                name,
                roles,
                config,
                folder=lease.folder,
                model=models[roles[0]],
                recorder=self.recorder,
                probe=probe,
                reservation=self.reservation,
                says=self.status.waits_for,
            )
            for name, roles in seats.items()
        ]

    def _play(self, lease: FolderLease, rules: Sequence[Rules]) -> None:
        config, folder, says = self.config, lease.folder, self.status.waits_for
        self.watch = ActorWatch(config.supervision.heartbeat_timeout_s)
        self.buffer = Buffer(_start_buffer(lease), folder / "episodes", self.watch.answer_within_s)
        self.watch.watch("buffer", self.buffer.handle, is_restarted=True)
        self.watch.start()
        self.arenas = Arenas(config, folder, self.watch, self.restarts, rules, buffer=self.buffer.handle)
        self.fleet = Fleet(
            config,
            folder,
            self.arenas,
            recorder=self.recorder,
            restarts=self.restarts,
            reservation=self.reservation,
            says=says,
        )
        self.publisher = Publisher(config, lease, self.policies, self.fleet, self.arenas)
        self.elastic = ElasticEngines(config.engine, self.fleet, self.policies, self.status.note)
        self.drained = DrainedNodes(self.fleet, self.policies, self.control.save_soon, self.status.note)

    def _loop(self) -> None:
        """The ground for games, and what a wait for them looks after."""
        split = TimeSplit()
        for policy in self.policies:
            policy.split = split
        self.ground = Playground(
            config=self.config,
            folder=self.control.lease.folder,
            fleet=self.fleet,
            arenas=self.arenas,
            buffer=self.buffer,
            buffer_metrics=BufferMetrics(self.buffer, self.recorder, self.config.stream.max_lag),
            recorder=self.recorder,
            status=self.status,
            poll_health=self.poll_health,
            versions=lambda: {policy.name: policy.version for policy in self.policies},
            elastic=self.elastic,
            meter=EngineMeter(self.fleet.roster, self.recorder),
            split=split,
        )

    def poll_health(self) -> None:
        """The checks of everything that the run owns, made while it waits for games. Raises what the watches could not
        repair, LearnersLostError, and StopRequestedError. Also sends weights to engines that wait for them, where it
        can."""
        self.control.check_stop()
        self.fleet.tasks.check()
        self.watch.check()
        self._poll_buffer()
        self.ground.buffer_metrics.sample()
        for policy in self.policies:
            policy.check_learners()
        with self.ground.split.phase("sync"):
            self.publisher.admit()

    def _poll_buffer(self) -> None:
        """Ray restarts the buffer, and the buffer rereads its logs; the restart and any damage are recorded here."""
        before, health = self._buffer_health, self.buffer.get(self.buffer.handle.health.remote())
        self._buffer_health = health
        if health.is_restarted if before is None else before.pid != health.pid:
            ended = ClusterError("its process ended, and Ray has started another")
            self.restarts.count("buffer", self.watch.reason("buffer") or ended)
        for stage, damage in health.damage.items():
            if before is None or before.damage.get(stage) != damage:
                self.recorder.record(LogDamageLine(stage, damage))


def _word_stream(config: RunConfig, words: Scenarios) -> WordStream:
    """Against other players each word comes at least twice: the learner attacks with it once, and defends once."""
    planned = [WordsOfGame(game.full_name, game.share, tuple(words[game.full_name])) for game in config.games]
    attacker_seats = 2 if config.meets_others else 1
    return WordStream(planned, config.seed, attacker_seats, config.words.games_per_word, config.words.order)


def _start_buffer(lease: FolderLease) -> BufferHandle:
    actor = ray.remote(BufferActor).options(
        name=f"buffer-{label_of(lease.folder)}",
        num_cpus=0,
        max_concurrency=1024,
        max_restarts=-1,  # Ray's number is of the actor's whole life; RestartBudget counts restarts within a time
        max_task_retries=-1,
    )
    handle: BufferHandle = actor.remote(str(lease.folder / "episodes"), lease)
    return handle


def _probe(renderer: Renderer, word: str) -> Probe:
    opens = SEATS[seat_to_move(renderer.game, (), word)]
    return Probe(renderer.prompt((), opens, word), renderer.reply_ids(PROBE))

"""The Run: one actor that owns every other actor of a run, wires them, and answers commands and sessions.

Run ── engines (EngineActor)   play ──> arenas (ArenaActor) ──> buffer (ReplayBuffer)
    └─ learners (LearnerActor) learn <── buffer;  publish ──> engines

They are used by training.py (the loop), training_verbs.py (its steps), recovery.py, ../schedules/ (play).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import ray

from actors.arena import Rules
from actors.league import Opponents
from cluster.buffer.buffer_actor import BufferActor, BufferHandle
from cluster.buffer.buffer_client import Buffer
from cluster.buffer.buffer_metrics import BufferMetrics
from cluster.fleet.drained_nodes import DrainedNodes
from cluster.fleet.elastic_engines import ElasticEngines
from cluster.fleet.fleet import Fleet
from cluster.fleet.publisher import Publisher
from cluster.learning.learning_policy import LearningPolicy
from cluster.learning.stage_samples import StageSamples
from cluster.learning.training_stage import TrainingStage
from cluster.learning.weight_sync import Probe
from cluster.monitor.status_board import StatusBoard
from cluster.monitor.train_log import followed
from cluster.planning.bundles import Bundle
from cluster.planning.reservation import Reservation, reservation_of
from cluster.rollout.arenas import Arenas, game_within_s
from cluster.run.control import RunControl
from cluster.run.health import Health
from cluster.run.recovery import Recovery
from cluster.run.run_handle import CONTROL, SESSIONS
from cluster.run.session_api import MAX_ASKED, GameWithUser, last_episodes
from cluster.run.training import train
from cluster.run.training_verbs import Trainer
from cluster.runtime.ray_session import redirect_output
from cluster.runtime.run_folder import write_end
from cluster.runtime.without_torch import light_tokenizer
from cluster.schedules.collapse_watch import CollapseWatch
from cluster.schedules.exploitability import Exploitability
from cluster.schedules.frozen import FrozenOpponents
from cluster.schedules.held_out import HeldOutMatches
from cluster.schedules.league import LeaguePlay
from cluster.schedules.playground import Playground
from cluster.schedules.rounds import play_round
from cluster.schedules.seating import Seating
from cluster.schedules.task_evaluation import TaskEvaluation
from cluster.schedules.tournament import Entrant, Tournament
from cluster.supervision.actor_watch import ActorWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.recorder import Recorder
from cluster.types import Progress
from spag_ray.config.loading import without_environment
from spag_ray.config.run import RunConfig
from spag_ray.errors import CollapseError, InputError, StopRequestedError
from spag_ray.game.decks import Deck
from spag_ray.game.prompt_file import load_template
from spag_ray.game.prompts import Renderer
from spag_ray.game.protocol import TABOO
from spag_ray.game.rules import Role
from spag_ray.game.words import Scenario, WordsOfGame, WordStream
from spag_ray.games.of_config import Scenarios, by_game, renderer_of
from spag_ray.host.folder_lease import FolderLease, Heartbeat
from spag_ray.results.evaluations import Evaluation
from spag_ray.results.game_names import names_by_game, names_of_all, write_names
from spag_ray.results.matches import Match
from spag_ray.stages import LEARN, PLAY
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.stage_spec import Method, StageSpec

LOOK_EVERY_S = 2.0  # at the load of engines, and at nodes that are drained

# A turn that is not from a game: learner and engines score it after every sync, and the scores are compared.
PROBE = "It is something that most people have seen, though few could say when they last looked at it closely."


class Run:
    """`lease`: of the run folder; this process adopts it. `words` are trained on, `held_out` only evaluated on; `model`
    is a folder; `rules`, of each game, have the game, which this process may be unable to import."""

    def __init__(
        self,
        config: RunConfig,
        lease: FolderLease,
        model: str,
        words: Scenarios,
        held_out: Scenarios,
        cards: Deck,
        rules: Sequence[Rules],
    ) -> None:
        lease.adopt()
        redirect_output(str(lease.folder / "logs" / "run.log"))
        self._config = config
        self._lease = lease
        self._folder = folder = lease.folder
        self._control = control = RunControl(lease)
        games = {each.name: each.game for each in rules}
        by_name = names_by_game(config, games)
        names = names_of_all(by_name)
        self._status = status = StatusBoard(lambda: self._policies[0].version, names)
        write_names(folder, config, games)
        Heartbeat(lease, status.note)  # until this process ends
        self._recorder = recorder = Recorder(folder, config.tracking, status.note, lease.check, names)
        self._restarts = restarts = RestartBudget(config.supervision, recorder, status.note)
        self._reservation = Reservation(config.cluster, reservation_of(folder), status.note, control.check_stop)

        tokenizer, template = light_tokenizer(model, games.values()), load_template(config.prompts)
        renderers = {
            each.game.full_name: renderer_of(each, tokenizer, games[each.game.full_name]) for each in config.each_game
        }
        first = next(iter(renderers.values()))
        words_of, held_out_of = by_game(config, words), by_game(config, held_out)
        self._policies = self._learning_policies(model, _probe(first, next(iter(held_out_of.values()))[0]))
        self._watch = ActorWatch(config.supervision.heartbeat_timeout_s)
        self._buffer = Buffer(self._start_buffer(), folder / "episodes", self._watch.answer_within_s)
        self._watch.watch("buffer", self._buffer.handle, is_restarted=True)
        self._watch.start()
        self._buffer_metrics = BufferMetrics(self._buffer, recorder, config.stream.max_lag, bool(config.games))
        self._arenas = Arenas(
            folder.name,
            str(folder / "logs"),
            config.self_play.num_arenas,
            self._watch,
            restarts,
            template,
            rules,
            config.engine.turn_timeout_s,
            config.engine.start_timeout_s,
            self._buffer.handle,
            game_within_s=game_within_s(config),
        )
        self._fleet = Fleet(config, folder, self._arenas, recorder, restarts, self._reservation, status.waits_for)
        self._publisher = Publisher(config, lease, self._policies, self._fleet, self._arenas, status.waits_for)
        self._elastic = ElasticEngines(config.engine, self._fleet, self._policies, status.note)
        self._drained = DrainedNodes(self._fleet, self._policies, self.save_soon, status.note)
        self._ground = self._make_ground()

        self._seating = Seating(config, self._policies, model, cards)
        self._matches = HeldOutMatches(self._ground, lease, held_out)
        polled, of = self._ground.poll_health, self._fleet.of
        self._tasks = TaskEvaluation(config, lease, self._policies, restarts, recorder, status, polled, of)
        frozen = FrozenOpponents(config.evaluation, self._fleet, self._seating, self._matches, status)
        league = LeaguePlay(config, lease, self._policies, self._publisher, self._seating, recorder)
        meets_others = league.league.is_open or config.self_play.on_collapse == "mix"  # then each word comes twice
        shares = [each.share for each in config.games] or [1.0]
        planned = [
            WordsOfGame(game, share, tuple(own)) for (game, own), share in zip(words_of.items(), shares, strict=True)
        ]
        stream = WordStream(planned, config.seed, attacker_seats=2 if meets_others else 1)
        self._recovery = Recovery(
            config,
            control,
            self._policies,
            self._publisher,
            self._buffer,
            stream,
            league,
            self._matches,
            self._tasks,
            restarts,
            recorder,
            status,
        )
        learning = {policy.name for policy in self._policies}
        self._trainer = Trainer(
            control,
            self._ground,
            self._policies,
            self._fleet,
            self._publisher,
            self._reservation,
            self._seating,
            stream,
            cards,
            StageSamples(config, tokenizer, renderers.get(TABOO, first), learning, recorder),
            league,
            self._matches,
            frozen,
            CollapseWatch(config, folder, self._matches, recorder, status, by_name),
            [
                Exploitability(self._ground, games[name], renderer, self._policies, name if config.games else None)
                for name, renderer in renderers.items()
            ],
            self._tasks,
            self._recovery,
        )

    def __repr__(self) -> str:
        """The name in Ray's dashboard and messages."""
        return f"run-{self._folder.name}"

    def train(self) -> list[Match]:
        """The whole of SPAG; see training.py."""
        with self._ending():
            self._fleet.tasks.every(LOOK_EVERY_S, self._elastic.look, "elastic-engines")
            self._fleet.tasks.every(LOOK_EVERY_S, self._drained.look, "drained-nodes")
            return train(self._trainer)

    def train_alone(self) -> None:
        """Train detached (console.launch): the Run ends itself and every actor that it owns."""
        try:
            with followed(self._folder, self.status):
                self.train()
        finally:
            with contextlib.suppress(OSError):  # disk full: the lease ends with this process
                self._lease.release()
            ray.actor.exit_actor()

    def play_only(self, attacker: str, defender: str, words: Sequence[str]) -> list[dict[str, Any]]:
        """One game a word between two model folders (which may be the same); games in the published format."""
        with self._ending():
            temperature = self._config.sampling.temperature
            self._reserve_engines(len({attacker, defender}))
            self._status.set_status("starting engines")
            self._fleet.start(attacker, "attacker", "attacker", 1)
            seat = other = self._seating.engines_of("attacker", "attacker", attacker, temperature)
            if defender != attacker:
                self._fleet.start(defender, "defender", "defender", 1)
                other = self._seating.engines_of("defender", "defender", defender, temperature)
            seats, opponents = {"attacker": seat, "defender": other}, Opponents(self._config.seed)
            episodes = play_round(self._ground, str(PLAY), list(map(Scenario, words)), seats, opponents)
            return [episode.as_published() for episode in episodes]

    def match_only(self, entrants: Sequence[Entrant], against: str | None, played: Sequence[Match]) -> list[Match]:
        """Matches between players that do not learn, in addition to those already `played`."""
        with self._ending():
            self._matches.results = list(played)
            if any(entrant.folder for entrant in entrants):
                self._reserve_engines(2 * self._config.engine.min_engines)  # for both seats
            tournament = Tournament(self._config, self._matches, self._publisher, self._seating, self._status)
            return tournament.play(entrants, against)

    def learn_only(self, method: Method, games: Sequence[GameSample], sft: Sequence[Sample], out: str) -> None:
        """One pass over samples from a file; the model is written to `out`."""
        with self._ending():
            config = self._config
            rank = Bundle("learner", config.learner.num_cpus, config.learner.num_gpus)
            self._reservation.reserve([rank] * config.learner.num_ranks)
            self._status.set_status("starting the learner")
            (policy,) = self._policies
            policy.start_learners()
            imitates = method == "imitation"
            part, coeffs = (config.imitation, config.imitation) if imitates else (config.self_play, config.objective)
            spec = StageSpec(method, 0, part.learning_rate, coeffs.kl_coeff)
            self._trainer.learn(TrainingStage(LEARN, spec, games, sft, part.batch_games, one_pass=True))
            policy.save_to(Path(out))

    def evaluate_only(self, model: str, stage: str) -> list[Evaluation]:
        """Evaluate a model folder on the configured tasks; its rows are labelled `stage`."""
        with self._ending():
            self._reserve_engines(self._config.engine.min_engines)
            self._status.set_status("starting engines")
            self._fleet.start(model, "evaluated", "evaluated", self._config.engine.min_engines)
            self._tasks.evaluate(stage, "evaluated", model)
            return self._tasks.rows

    # For sessions, displays and signals during the run; those that may take long have threads of their own.

    @ray.method(concurrency_group=CONTROL)
    def status(self) -> Progress:
        return self._status.progress(self._control.is_paused)

    @ray.method(concurrency_group=CONTROL)
    def described(self) -> dict[str, Any]:
        """The configuration without the values of environment variables, and where the run is."""
        return {"config": without_environment(self._config.model_dump(mode="json")), "folder": str(self._folder)}

    @ray.method(concurrency_group=SESSIONS)
    def episodes(self, count: int, outcome: str | None, stage: str | None) -> list[dict[str, Any]]:
        """See last_episodes."""
        return last_episodes(self._folder, count, outcome, stage)

    @ray.method(concurrency_group=SESSIONS)
    def metrics(self, kind: str | None, count: int) -> list[dict[str, Any]]:
        """The last `count` lines of metrics.jsonl, of one kind if given."""
        return self._recorder.last(kind, min(count, MAX_ASKED))

    @ray.method(concurrency_group=SESSIONS)
    def play_turn(self, word: str, texts: list[str], human: str, game: str | None = None) -> dict[str, Any]:
        """See GameWithUser."""
        return GameWithUser(self._config, self._fleet, self._arenas, self._seating).turn(word, texts, human, game)

    @ray.method(concurrency_group=SESSIONS)
    def pause(self) -> None:
        """Start no game and no learner step until `resume`; those under way are finished."""
        self._control.is_paused = True
        self._arenas.pause(True)

    @ray.method(concurrency_group=SESSIONS)
    def resume(self) -> None:
        self._control.is_paused = False
        self._arenas.pause(False)

    @ray.method(concurrency_group=CONTROL)
    def save_soon(self) -> None:
        """Write a checkpoint at the next point where one can be written."""
        self._recovery.is_wanted = True

    @ray.method(concurrency_group=CONTROL)
    def stop_soon(self, seconds: float) -> None:
        """Stop at the next point where nothing is lost; this process ends in `seconds`."""
        self._control.stop_soon(seconds)

    @ray.method(concurrency_group=SESSIONS)
    def add_engine(self, policy_name: str = "policy") -> str:
        """Add an engine to a learning policy during play; see Fleet.add. Raises InputError for any other policy."""
        by_name = {policy.name: policy for policy in self._policies}
        if policy_name not in by_name:
            raise InputError(f"no policy {policy_name!r} learns; there are {', '.join(by_name)}")
        return self._fleet.add(by_name[policy_name])

    @ray.method(concurrency_group=SESSIONS)
    def remove_engine(self, name: str) -> None:
        self._fleet.remove(name)

    def close(self) -> None:
        """End every actor of the run; engines first close their child processes."""
        self._fleet.close()
        self._watch.stop()
        for policy in self._policies:
            policy.close_learners()
        self._reservation.close()
        self._arenas.close()
        ray.kill(self._buffer.handle)
        self._recorder.close()

    @contextlib.contextmanager
    def _ending(self) -> Iterator[None]:
        """After the block, close everything and write to ended.json how it ended, unless another run has taken the
        folder."""
        ended, reason = "finished", None
        try:
            yield
        except BaseException as error:
            is_stop = isinstance(error, StopRequestedError | CollapseError)
            ended, reason = "stopped" if is_stop else "failed", str(error)
            raise
        finally:
            self.close()
            write_end(self._lease, ended, reason)

    def _learning_policies(self, model: str, probe: Probe) -> list[LearningPolicy]:
        config = self._config
        seats = {"policy": tuple(Role)} if config.policies == "shared" else {str(role): (role,) for role in Role}
        return [
            LearningPolicy(name, roles, config, self._folder, model, self._recorder, probe, self._reservation)
            for name, roles in seats.items()
        ]

    def _start_buffer(self) -> BufferHandle:
        actor = ray.remote(BufferActor).options(
            name=f"buffer-{self._folder.name}",
            num_cpus=0,
            max_concurrency=1024,
            max_restarts=self._config.supervision.max_restarts,
            max_task_retries=-1,
        )
        handle: BufferHandle = actor.remote(str(self._folder / "episodes"), self._lease)
        return handle

    def _make_ground(self) -> Playground:
        health = Health(
            self._control,
            self._policies,
            self._fleet,
            self._publisher,
            self._buffer,
            self._watch,
            self._buffer_metrics,
            self._restarts,
            self._recorder,
        )
        return Playground(
            self._config,
            self._folder,
            self._fleet,
            self._arenas,
            self._buffer,
            self._buffer_metrics,
            self._recorder,
            self._status,
            health.poll,
            lambda: {policy.name: policy.version for policy in self._policies},
            self._elastic,
        )

    def _reserve_engines(self, count: int) -> None:
        own = self._config.engine
        self._reservation.reserve([Bundle("engine", own.num_cpus, own.num_gpus)] * count)


def _probe(renderer: Renderer, word: str) -> Probe:
    return Probe(renderer.prompt((), Role.ATTACKER, word), renderer.reply_ids(PROBE))

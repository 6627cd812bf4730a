"""The steps of the loop (training.py), implemented with the parts of a run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from actors.league import Opponents
from actors.models import BUILT_IN
from cluster.fleet.fleet import Fleet
from cluster.fleet.publisher import Publisher
from cluster.learning.learning_policy import LearningPolicy
from cluster.learning.stage_samples import StageSamples
from cluster.learning.training_stage import TrainingStage
from cluster.planning.bundles import bundles_of
from cluster.planning.reservation import Reservation
from cluster.run.checkpoint import RunState
from cluster.run.control import RunControl
from cluster.run.recovery import Recovery
from cluster.schedules.collapse_watch import CollapseWatch
from cluster.schedules.exploitability import Exploitability
from cluster.schedules.frozen import FrozenOpponents
from cluster.schedules.held_out import HeldOutMatches
from cluster.schedules.league import LeaguePlay
from cluster.schedules.playground import Playground
from cluster.schedules.rounds import play_round
from cluster.schedules.seating import Seating
from cluster.schedules.stream import Stream, streaming
from cluster.schedules.task_evaluation import TaskEvaluation
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.errors import LearnersLostError
from spag_ray.game.decks import Deck
from spag_ray.game.rules import Role
from spag_ray.game.share_plan import SharePlan
from spag_ray.game.words import Scenario, WordStream
from spag_ray.results.matches import Match
from spag_ray.results.model_card import SMOLLM2, BaseModel, write_cards
from spag_ray.results.saved_models import is_complete, make_incomplete
from spag_ray.stages import BASE, EXPERT, IMITATED, Stage


class Trainer:
    """The steps of one run, which owns the given parts."""

    def __init__(
        self,
        control: RunControl,
        ground: Playground,
        policies: Sequence[LearningPolicy],
        fleet: Fleet,
        publisher: Publisher,
        reservation: Reservation,
        seating: Seating,
        words: WordStream,
        cards: Deck,
        samples: StageSamples,
        league: LeaguePlay,
        matches: HeldOutMatches,
        frozen: FrozenOpponents,
        collapse: CollapseWatch,
        exploitability: Sequence[Exploitability],
        tasks: TaskEvaluation,
        recovery: Recovery,
    ) -> None:
        self.config = ground.config
        self.samples = samples
        self._control = control
        self._ground = ground
        self._status = ground.status
        self._policies = policies
        self._fleet = fleet
        self._publisher = publisher
        self._reservation = reservation
        self._seating = seating
        self._words = words
        self._cards = cards
        self._league = league
        self._matches = matches
        self._frozen = frozen
        self._collapse = collapse
        self._exploitability = exploitability
        self._tasks = tasks
        self._recovery = recovery

    def start(self) -> None:
        self._status.set_status("waiting for free CPUs and GPUs")
        self._reservation.reserve(bundles_of(self.config))
        self._status.set_status("starting engines and learner")
        with self._publisher.learners_beside():
            for policy in self._policies:
                count = self.config.engine.min_engines
                self._fleet.start(policy.model, policy.name, policy.name, count, policy)
        self._publisher.start_learners()

    def restore(self) -> RunState:
        return self._recovery.restore()

    def restart_learners(self, error: LearnersLostError) -> None:
        self._recovery.restart_learners(error)

    def measure_checkpoint(self) -> None:
        self._recovery.measure_checkpoint()

    def checkpoint(self, name: str, state: RunState) -> RunState:
        return self._recovery.checkpoint(name, state)

    def checkpoint_is_due(self, num_versions: int) -> bool:
        return num_versions % self.config.checkpoint.every_versions == 0 or self._recovery.is_due

    def time_to_save(self) -> bool:
        return self._recovery.time_to_save()

    def play_expert(self) -> list[Episode]:
        by_game = []
        for each in self._words.games:
            words = list(self._cards if self.config.of_game(each.game).game.is_taboo else each.words)
            random.Random(self.config.seed).shuffle(words)
            by_game.append(words)
        plan = SharePlan([each.share for each in self._words.games])
        played = []
        for game, number in map(plan.at, range(self.config.imitation.games)):
            played.append(Scenario(by_game[game][number % len(by_game[game])], self._words.games[game].game))
        seats = dict.fromkeys(("attacker", "defender"), self._seating.expert())
        return play_round(self._ground, str(EXPERT), played, seats, Opponents(self.config.seed))

    def self_play(self, stage: Stage) -> list[Episode]:
        """One game per word: the newest weights against themselves, the league's opponents, and after a collapse the
        frozen opponents (self_play.on_collapse: mix)."""
        leases = [self._words.lease() for _ in range(self.config.self_play.games_per_round)]
        opponents, others = self._league.opponents(), dict(self._league.seats)
        if share := self._collapse.mix_share:
            opponents = opponents.mixed_with(self._frozen.names, share)
            others |= self._frozen.seats(self.config.sampling.temperature)
        seats = self._seating.self_play(others)
        episodes = play_round(self._ground, str(stage), [lease.scenario for lease in leases], seats, opponents)
        for lease in leases:
            self._words.done(lease)
        return episodes

    def streaming(self, state: RunState) -> AbstractContextManager[Stream]:
        seats, opponents = self._seating.self_play(self._league.seats), self._league.opponents()
        return streaming(self._ground, self._words, seats, opponents, state.stream)

    def learn(self, stage: TrainingStage) -> None:
        """Train every policy on its part."""
        self._publisher.wake_learners()

        def show(name: str, done: int, total: int, loss: float | None) -> None:
            self._status.show_steps(name, done, total, loss)
            self._ground.buffer_metrics.look()
            self._recovery.between_steps(stage)

        for policy in self._policies:
            policy.learn(stage, show)
        for policy in self._policies:
            policy.training.stage_progress = None
        # A model of this stage is from an attempt that was abandoned. It is marked before the stage's checkpoint is
        # written, so that a resume from that checkpoint does not take it for the checkpoint's own.
        self._control.lease.check(now=True)
        for policy in self._policies:
            make_incomplete(policy.saved(stage.stage))

    def save(self, stage: Stage) -> None:
        self._control.lease.check(now=True)
        for policy in self._policies:
            policy.save_to(policy.saved(stage))
        self._write_cards(stage)

    def save_missing(self, state: RunState) -> None:
        stream, done = self.config.stream, 0
        if self.config.schedule == "stream":
            done = state.rounds * (self.config.self_play.games_per_round // stream.games_per_version)
        if not state.stage or state.parts != done or any(policy.is_in_stage for policy in self._policies):
            return  # the learners' weights are of no stage's end
        stage = Stage.parse(state.stage)
        if all(is_complete(policy.saved(stage)) for policy in self._policies):
            return
        self._status.note(f"the model of {stage} is missing: it is saved again, from the checkpoint")
        self._publisher.wake_learners()
        self.save(stage)
        self._publisher.wake_engines()

    def publish(self) -> None:
        self._publisher.publish()

    def start_league(self, state: RunState) -> None:
        self._league.start()
        self.new_version(state)

    def new_version(self, state: RunState) -> None:
        num_done = state.parts if self.config.schedule == "stream" else state.rounds
        # Weights from the middle of a stage never become opponents.
        self._league.new_version(num_done + self.config.imitation.enabled, may_keep=not self.is_mid_stage())

    def record_opponents(self, episodes: list[Episode]) -> None:
        self._league.record(episodes)

    def evaluate(self, stage: Stage) -> None:
        """Evaluate the stage's policies: on held-out words against themselves and frozen opponents, and on tasks of
        lm-evaluation-harness."""
        if self.config.evaluation.games:
            attacker, defender = (self._seating.newest(role, self.config.evaluation.temperature) for role in Role)
            self._matches.play(attacker, defender, Stage.evaluation(str(stage)))
            self._frozen.evaluate(stage)
        for each in self._exploitability:
            each.measure(stage)
        if asks_tasks(self.config, stage):
            self._tasks.stage(stage)
        self._write_cards(stage)
        self.look_for_collapse(stage)

    def look_for_collapse(self, stage: Stage) -> None:
        self._collapse.look(stage)

    def is_mid_stage(self) -> bool:
        return any(policy.is_in_stage for policy in self._policies)

    def match_with(self, stage: Stage) -> None:
        last = Stage.of_round(self.config.self_play.rounds)
        self._frozen.meet(last, stage, self.config.evaluation.games)

    def end_learning(self) -> None:
        """Training is done: engines may take the learners' places."""
        for policy in self._policies:
            policy.close_learners()
        self._reservation.learners_are_done()

    def end(self) -> list[Match]:
        self._write_cards()
        self._league.end()
        self._status.set_status("done")
        return self._matches.results

    def _write_cards(self, stage: Stage | None = None) -> None:
        """The README.md of the saved models of a stage, or of all."""
        self._control.lease.check(now=True)
        is_built_in = self.config.model == BUILT_IN
        base = SMOLLM2 if is_built_in else BaseModel.of_folder(Path(self._policies[0].model))
        write_cards(self._ground.folder, base, stage)


def asks_tasks(config: RunConfig, stage: Stage) -> bool:
    """Whether tasks are evaluated after a stage. `evaluation.task_stages: ends` means the model that self-play starts
    from and the last one."""
    if config.evaluation.task_stages == "all":
        return True
    first = IMITATED if config.imitation.enabled else BASE
    rounds = config.self_play.rounds
    return stage in (first, Stage.of_round(rounds) if rounds else first)

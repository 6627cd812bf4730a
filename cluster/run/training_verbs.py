"""The steps of the loop (training.py), implemented with the parts of a run."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from actors.arena import LISTENER
from actors.league import Opponents
from actors.models import BUILT_IN
from cluster.learning.stage_samples import TrainingStage
from cluster.planning.reservation import bundles_of
from cluster.run.checkpoint import RunState
from cluster.run.parts import RunParts
from cluster.run.recovery import Recovery
from cluster.schedules.rounds import play_round
from cluster.schedules.stream import Stream, streaming
from cluster.tracking.time_split import OF_LEARNER
from cluster.types import Seat
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import Role
from spag_ray.game.words import Scenario, SharePlan
from spag_ray.results.lines import PHASES, EloLine, GroupsLine, IterationLine
from spag_ray.results.matches import Match, of_game
from spag_ray.results.model_card import SMOLLM2, BaseModel, write_cards
from spag_ray.results.saved_models import is_complete, make_incomplete
from spag_ray.stages import BASE, EXPERT, IMITATED, Stage
from spag_ray.training_data.game_samples import spreads


class Trainer:
    """The steps of one run; `recovery` has those that save and resume it."""

    def __init__(self, parts: RunParts, recovery: Recovery) -> None:
        self.config = parts.config
        self.samples = parts.samples
        self.recovery = recovery
        self._parts = parts
        self._split = parts.ground.split

    @contextmanager
    def iteration(self, stage: Stage) -> Iterator[None]:
        """A round, or a version of a stream: a line says where its time went, unless the block fails."""
        meter, is_stream = self._parts.ground.meter, self.config.schedule == "stream"
        meter.take()
        meter.idle_share()
        self._split.restart()
        yield
        meter.take(str(stage) if is_stream else None, self._parts.ground.version)
        idle_share = meter.idle_share()
        seconds, of_phase = self._split.taken()
        waited: dict[str, Any] = {f"{phase}_s": round(of_phase.get(phase, 0.0), 3) for phase in PHASES}
        self._parts.recorder.record(
            IterationLine(
                stage=str(stage),
                version=self._parts.ground.version,
                step=self._parts.recorder.num_steps,
                seconds=round(seconds, 3),
                engines_idle_s=None if idle_share is None else round(seconds * idle_share, 3),
                learner_idle_s=round(seconds - sum(of_phase.get(phase, 0.0) for phase in OF_LEARNER), 3),
                **waited,
            )
        )

    def start(self) -> None:
        """Start engines and learners, once there is room for all of them."""
        self._parts.status.set_status("waiting for free CPUs and GPUs")
        self._parts.reservation.reserve(bundles_of(self.config))
        self._parts.status.set_status("starting engines and learner")
        with self._parts.publisher.learners_beside():
            for policy in self._parts.policies:
                count = self.config.engine.min_engines
                self._parts.fleet.start(policy.model, policy.name, policy.name, count, policy)
        self._parts.publisher.start_learners()

    def checkpoint_is_due(self, num_versions: int) -> bool:
        """Whether a stream that has published so many versions is to be saved."""
        return num_versions % self.config.checkpoint.every_versions == 0 or self.recovery.is_due

    def play_expert(self) -> list[Episode]:
        self._parts.callbacks.stage_began(str(IMITATED))
        by_game = []
        for each in self._parts.words.games:
            words = list(self._parts.cards if self.config.of_game(each.game).game.has_cards else each.words)
            random.Random(self.config.seed).shuffle(words)
            by_game.append(words)
        plan = SharePlan([each.share for each in self._parts.words.games])
        played = []
        for game, number in map(plan.at, range(self.config.imitation.games)):
            played.append(Scenario(by_game[game][number % len(by_game[game])], self._parts.words.games[game].game))
        seats = dict.fromkeys(("attacker", "defender"), self._parts.seating.expert())
        episodes = play_round(self._parts.ground, str(EXPERT), played, seats, Opponents(self.config.seed))
        self._parts.callbacks.games_came(episodes)
        return episodes

    def self_play(self, stage: Stage) -> list[Episode]:
        """One game per word: the newest weights against themselves, the league's opponents, and after a collapse the
        frozen opponents (self_play.on_collapse: mix). Then groups in the place of those that all agree
        (self_play.refill_agreeing)."""
        self._parts.callbacks.stage_began(str(stage))
        leases = [self._parts.words.lease() for _ in range(self.config.self_play.games_per_round)]
        opponents = replace(self._parts.league.opponents(), stage=str(stage))
        others = dict(self._parts.league.seats)
        if share := self._parts.collapse.mix_share:
            opponents = opponents.mixed_with(self.config.evaluation.against, share)
            others |= self._parts.frozen.seats(self.config.sampling.temperature)
        seats = self._parts.seating.self_play(others) | self._listener()
        scenarios = [lease.scenario for lease in leases]

        def more(episodes: Sequence[Episode]) -> list[Scenario]:
            # A function of the games so far alone, so that a resumed round comes to the same further games.
            new = [self._parts.words.lease() for _ in range(self._num_to_refill(stage, episodes))]
            leases.extend(new)
            return [lease.scenario for lease in new]

        with self._split.phase("generate"):
            episodes = play_round(self._parts.ground, str(stage), scenarios, seats, opponents, more=more)
        for lease in leases:
            self._parts.words.done(lease)
        for each in self.config.each_game:
            own = [episode for episode in episodes if episode.game == each.game.full_name]
            self._parts.words.observe(each.game.full_name, spreads(own, each.payoffs_of(stage)))
        if self.config.self_play.refill_agreeing:
            dropped, refilled = self.samples.num_dropped_groups(stage, episodes), self._num_refilled(episodes)
            self._parts.recorder.record(GroupsLine(str(stage), dropped, refilled))
        return episodes

    def _num_to_refill(self, stage: Stage, episodes: Sequence[Episode]) -> int:
        """How many games are to be played after these of a round, in place of groups that are left out."""
        most = self.config.self_play.refill_agreeing
        if not most:
            return 0
        missing = min(self.samples.num_dropped_groups(stage, episodes), most) - self._num_refilled(episodes)
        return max(0, missing) * self.config.words.games_per_word

    def _num_refilled(self, episodes: Sequence[Episode]) -> int:
        """The groups beyond those that a round begins with."""
        return (len(episodes) - self.config.self_play.games_per_round) // self.config.words.games_per_word

    def streaming(self, state: RunState) -> AbstractContextManager[Stream]:
        seats = self._parts.seating.self_play(self._parts.league.seats) | self._listener()
        opponents = self._parts.league.opponents()
        return streaming(self._parts.ground, self._parts.words, seats, opponents, state.stream)

    def _listener(self) -> dict[str, Seat]:
        """Who listens to games that are trained on, as an arena's player of no seat."""
        return {LISTENER: self._parts.frozen.listener()} if self.config.objective.information_gain else {}

    def learn(self, stage: TrainingStage) -> None:
        """Train every policy on its part."""
        self._parts.callbacks.stage_began(str(stage.stage))
        with self._split.phase("sync"):
            self._parts.publisher.wake_learners()

        def show(name: str, done: int, total: int, loss: float | None) -> None:
            self._parts.status.show_steps(name, done, total, loss)
            self._parts.ground.buffer_metrics.sample()
            self.recovery.between_steps(stage)

        with self._split.phase("train"):
            for policy in self._parts.policies:
                policy.learn(stage, show)
        for policy in self._parts.policies:
            policy.stage_progress = None
        # A model of this stage is from an attempt that was abandoned. It is marked before the stage's checkpoint is
        # written, so that a resume from that checkpoint does not take it for the checkpoint's own.
        self._parts.control.lease.check(now=True)
        for policy in self._parts.policies:
            make_incomplete(policy.saved(stage.stage))

    def save(self, stage: Stage, is_told: bool = True) -> None:
        """The learners' weights as model folders of the run."""
        self._parts.control.lease.check(now=True)
        with self._split.phase("checkpoint"):
            for policy in self._parts.policies:
                policy.save_to(policy.saved(stage))
            self._write_cards(stage)
        if is_told:
            self._parts.callbacks.stage_ended(
                str(stage), {each.name: str(each.saved(stage)) for each in self._parts.policies}
            )

    def save_missing(self, state: RunState) -> None:
        """Save the model of the stage that `state` ended with, if the attempt before could not."""
        if not state.stage or state.is_mid_round(self.config) or self.is_mid_stage():
            return  # the learners' weights are of no stage's end
        stage = Stage.parse(state.stage)
        if all(is_complete(policy.saved(stage)) for policy in self._parts.policies):
            for policy in self._parts.policies:
                policy.is_saved_in(policy.saved(stage))
            return
        self._parts.status.note(f"the model of {stage} is missing: it is saved again, from the checkpoint")
        self._parts.publisher.wake_learners()
        self.save(stage, is_told=False)
        self._parts.publisher.wake_engines()

    def publish(self) -> None:
        with self._split.phase("sync"):
            self._parts.publisher.publish()

    def start_league(self, state: RunState) -> None:
        self._parts.league.start()
        self.new_version(state)

    def new_version(self, state: RunState, stream: Stream | None = None) -> None:
        """Call after a publish: the league may keep the version, and draws past versions for its engines. `stream`: the
        one that goes on meanwhile; its next games are against these."""
        num_done = state.parts if self.config.schedule == "stream" else state.rounds
        # Weights from the middle of a stage never become opponents.
        with self._split.phase("sync"):  # engines may load past versions
            self._parts.league.new_version(num_done + self.config.imitation.enabled, may_keep=not self.is_mid_stage())
            if stream is not None:
                stream.meet(self._parts.league.opponents())

    def record_opponents(self, stage: Stage, episodes: list[Episode]) -> None:
        """Who won against whom in games of this stage."""
        self._parts.callbacks.stage_began(str(stage))
        self._parts.callbacks.games_came(episodes)
        self._parts.league.league.record(episodes)

    def evaluate(self, stage: Stage) -> None:
        """Evaluate the stage's policies: on held-out words against themselves and frozen opponents, and on tasks of
        lm-evaluation-harness. Raises CollapseError if the run has collapsed and is to stop."""
        with self._split.phase("evaluate"):
            self._measure(stage)
            self._write_cards(stage)
        self.look_for_collapse(stage)

    def _measure(self, stage: Stage) -> None:
        if self.config.evaluation.games:
            attacker, defender = (self._parts.seating.newest(role, self.config.evaluation.temperature) for role in Role)
            self._parts.matches.play(attacker, defender, Stage.evaluation(str(stage)))
            self._parts.frozen.evaluate(stage)
            self._record_elo(stage)
        for each in self._parts.exploitability:
            each.measure(stage)
        if asks_tasks(self.config, stage):
            self._parts.tasks.stage(stage)

    def look_for_collapse(self, stage: Stage) -> None:
        """The part of `evaluate` that plays nothing: it looks at what was measured before."""
        self._parts.collapse.check(stage)

    def is_mid_stage(self) -> bool:
        """Whether the learners' weights are from the middle of a stage, which resumes with its next step."""
        return any(policy.is_in_stage for policy in self._parts.policies)

    def match_with(self, stage: Stage) -> None:
        """The newest weights against those of an earlier stage, in both seats."""
        last = Stage.of_round(self.config.self_play.rounds)
        self._parts.frozen.meet(last, [stage], self.config.evaluation.games)
        self._record_elo(last)

    def _record_elo(self, stage: Stage) -> None:
        """How much better the stage is than the first one, if matches say it."""
        from spag_ray.results.standings import elo  # numpy and scipy: only where matches are played

        for game in self.config.game_names:
            if (found := elo(of_game(self._parts.matches.results, game), str(stage))) is not None:
                against, seats = found
                self._parts.recorder.record(
                    EloLine(
                        stage=str(stage),
                        game=game,
                        version=self._parts.ground.version,
                        against=against,
                        elo=round(fmean(seats.values()), 1),
                        seats={str(role): value for role, value in seats.items()},
                    )
                )

    def end_learning(self) -> None:
        """Training is done: engines may take the learners' places."""
        for policy in self._parts.policies:
            policy.close_learners()
        self._parts.reservation.learners_are_done()

    def end(self) -> list[Match]:
        self._write_cards()
        self._parts.league.end()
        self._parts.status.set_status("done")
        return self._parts.matches.results

    def _write_cards(self, stage: Stage | None = None) -> None:
        """The README.md of the saved models of a stage, or of all."""
        self._parts.control.lease.check(now=True)
        is_built_in = self.config.model == BUILT_IN
        base = SMOLLM2 if is_built_in else BaseModel.of_folder(Path(self._parts.seating.model))
        of_seats = {
            str(policy.name): BaseModel.of_folder(Path(policy.model))
            for policy in self._parts.policies
            if policy.name in self.config.seat_models
        }
        write_cards(self._parts.ground.folder, base, stage, of_seats)


def asks_tasks(config: RunConfig, stage: Stage) -> bool:
    """Whether tasks are evaluated after a stage. `evaluation.task_stages: ends` means the model that self-play starts
    from and the last one."""
    if config.evaluation.task_stages == "all":
        return True
    first = IMITATED if config.imitation.enabled else BASE
    rounds = config.self_play.rounds
    return stage in (first, Stage.of_round(rounds) if rounds else first)

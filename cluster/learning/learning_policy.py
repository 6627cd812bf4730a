"""A policy that learns: its learner group, the engines that play it, its version.

Either one policy plays both seats, or an attacker and a defender learn separately, each with its own learner group,
engines and version.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from cluster.learning.direct_channel import DirectChannel
from cluster.learning.learner_group import LearnerGroup
from cluster.learning.memory_fault import memory_advice
from cluster.learning.training_stage import Saved, StageProgress, TrainingStage, saved_in
from cluster.learning.weight_sync import Export, Gate, Probe, export, publish, verify_weights
from cluster.planning.reservation import Reservation
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.config.run import RunConfig
from spag_ray.errors import EngineError, LearnerError, LearnersLostError, WeightSyncError
from spag_ray.game.rules import Role
from spag_ray.results.lines import EngineLostLine, ReferenceLine, StepLine, StepReport, SyncLine, SyncReport
from spag_ray.stages import BASE, IMITATED, Stage
from spag_ray.training_data.listened_turns import count_leading, spread
from spag_ray.training_data.samples import GameSample, turns_of

# (stage, steps done, steps, loss) -> shown
ShowStep = Callable[[str, int, int, float | None], None]


class LearningPolicy:
    """`name` stamps its turns; `roles` are the seats that it plays."""

    def __init__(
        self,
        name: str,
        roles: tuple[Role, ...],
        config: RunConfig,
        folder: Path,
        model: str,
        recorder: Recorder,
        probe: Probe | None = None,
        reservation: Reservation | None = None,
    ) -> None:
        self.name = name
        self.roles = roles
        self.version = 0
        self.model = model
        self.engines: list[Engine] = []
        self.learners: LearnerGroup | None = None
        self._config = config
        self._folder = folder
        self._recorder = recorder
        self._probe = probe
        self._reservation = reservation
        self.waiting: list[Engine] = []
        self._exported: Export | None = None
        self._is_proved = False  # the last export is on the engines and was compared with the learner
        self._report: SyncReport | None = None
        self._direct: DirectChannel | None = None
        self._begun: str | None = None
        self._stage_steps: int | None = None  # as last given to the learners; None: not by this object
        self._reference_of: Stage | None = None  # the stage whose start the learners keep
        self._saved: Saved | None = None
        self.stage_progress: StageProgress | None = None

    @property
    def next_version(self) -> int:
        """The version of the next published weights."""
        return self.version + 1

    def start_learners(self) -> None:
        self._begun = self._stage_steps = self._reference_of = None
        label = "learner" if self.name == "policy" else f"learner-{self.name}"
        self.learners = LearnerGroup(
            self.model,
            self._config.learner,
            self._config.objective,
            str(self._folder / "logs"),
            f"{label}-{self._folder.name}",
            self._reservation,
            advice=lambda: memory_advice(self._config, self.model),
        )
        if self._config.sync.channel != "object_store":
            workers = self._config.engine.tensor_parallel_size
            self._direct = DirectChannel(self.learners, self._config.sync, workers)

    def check_learners(self) -> None:
        """Raises LearnersLostError for a rank that has died while idle."""
        if (learners := self.learners) is not None:
            learners.check_alive()

    def learn(self, training_stage: TrainingStage, show: ShowStep) -> None:
        """Train on the policy's part of a stage. Raises LearnerError if too many steps in a row had no finite
        gradient."""
        assert self.learners is not None
        games = list(training_stage.games) if len(self.roles) == 2 else turns_of(training_stage.games, self.roles[0])
        games.sort(key=lambda game: not game.turns)  # games with only listening turns come last
        stage = self._own(training_stage.stage)
        self._keep_reference(training_stage)
        if not games:
            return  # this seat has nothing to train on: the other won every game
        self.learners.check([*(turn for game in games for turn in game.turns + game.listening), *training_stage.sft])
        # A seat that only listens takes as many steps as the games of both seats would.
        num_leading = sum(bool(game.turns) for game in games) or count_leading(training_stage.games)
        num_steps = min(len(games), -(-num_leading // training_stage.batch_games))
        stage_progress = self._begin(training_stage, stage, games, num_steps, show)
        batches = spread(stage_progress.games, training_stage.batch_games, num_steps)
        if training_stage.part_of is None:
            self.stage_progress = stage_progress
        rows_per_step = self._config.self_play.sft_rows_per_step if training_stage.sft else 0
        num_skipped = 0
        for step in range(stage_progress.num_steps_done, num_steps):
            batch = batches[step]
            rows = [
                training_stage.sft[(step * rows_per_step + row) % len(training_stage.sft)]
                for row in range(rows_per_step)
            ]
            report = self.learners.step(batch, rows, training_stage.temperature, at_start=step == 0)
            self._recorder.record(StepLine(stage, self.name, report))
            stage_progress.num_steps_done = step + 1
            show(f"{stage}: learn", step + 1, num_steps, report.loss)
            num_skipped = num_skipped + 1 if report.skipped else 0
            if report.skipped:
                self._dump(stage, batch, report)
            if num_skipped == self._config.learner.max_skipped_steps:
                raise LearnerError(
                    f"{stage}: {num_skipped} steps in a row had no finite gradient (loss {report.loss}) and were "
                    f"skipped; the batches are in {self._folder / 'skipped'}; lower the learning rate, or look at the "
                    "games"
                )

    def _begin(
        self, training_stage: TrainingStage, stage: str, games: list[GameSample], num_steps: int, show: ShowStep
    ) -> StageProgress:
        """The stage at its start, or as saved in the checkpoint that was loaded last."""
        assert self.learners is not None
        saved, self._saved = self._saved, None
        if saved is not None and saved.stage == stage:
            resumed = saved.of(games)
            if self._compares_with_start(training_stage):
                resumed.games = self.learners.score_reference(resumed.games, training_stage.temperature)
            return resumed
        show(f"{stage}: reference", 0, num_steps, None)
        games = self._scored(games, training_stage)
        all_steps = training_stage.stage_steps or num_steps
        if training_stage.part_of is None or training_stage.part_of != self._begun:
            self._begun = training_stage.part_of
            self.learners.begin_stage(
                training_stage.method,
                all_steps,
                training_stage.learning_rate,
                training_stage.kl_coeff,
                training_stage.listening_coeff,
            )
        elif all_steps != self._stage_steps:  # resumed, perhaps with more rounds
            self.learners.continue_stage(all_steps)
        self._stage_steps = all_steps
        return StageProgress(stage, games)

    def _keep_reference(self, training_stage: TrainingStage) -> None:
        """Make the learners keep the weights that the KL term compares with: those of the model that self-play started
        with (kl_reference: start), or in a stream those of the stage's start: the current ones before its first part,
        and when it is resumed, those saved at the end of the previous stage."""
        assert self.learners is not None
        if self._compares_with_start(training_stage):
            if self._reference_of is None:
                start = self.saved(IMITATED) if self._config.imitation.enabled else self.model
                self.learners.load_reference(str(start))
                self._reference_of = IMITATED
            return
        if training_stage.part_of is None or not self._config.keeps_stage_start:
            return
        if training_stage.part == 0:
            self.learners.keep_reference()
        elif self._reference_of != training_stage.stage:
            model = str(self.saved(training_stage.after)) if training_stage.after else self.model
            is_exact = self.learners.load_reference(model)
            saved = str(training_stage.after or BASE)
            self._recorder.record(ReferenceLine(self.name, str(training_stage.stage), saved, is_exact))
        self._reference_of = training_stage.stage

    def _compares_with_start(self, training_stage: TrainingStage) -> bool:
        is_of_start = self._config.objective.kl_reference == "start" and training_stage.kl_coeff > 0
        return is_of_start and training_stage.method == "self_play"

    def export(self) -> None:
        """Start to export the learner's weights as the next version. The previous version is released first, so the
        object store need not hold two."""
        assert self.learners is not None
        self._exported, self._is_proved = None, False
        self._exported = export(self.learners, self.next_version, self._probe, self._direct)
        if self._config.placement == "colocated":
            self._exported.wait()

    def publish(self, gate: Gate) -> dict[Engine, str]:
        """Give the exported version to every engine of this policy, including those that wait for it; returns
        {engine: why} of those that were stopped."""
        assert self._exported is not None
        self.engines += self.waiting
        self.waiting = []
        with self._learners_to_blame():
            self._report, lost = self._hand_out(self._exported, self.engines, gate)
        self.version = self._exported.version
        self.engines = [engine for engine in self.engines if engine not in lost]
        return lost

    def verify_weights(self) -> dict[Engine, str]:
        """Compare learner and engines after `publish`; returns {engine: why} of those that were stopped."""
        assert self._exported is not None
        assert self._report is not None
        lost: dict[Engine, str] = {}
        if self._probe is not None:
            self._report, lost = verify_weights(
                self._exported, self.engines, self._config.sync, self._probe, self._report
            )
            self.engines = [engine for engine in self.engines if engine not in lost]
        self._is_proved = True
        self._recorder.record(SyncLine(self.name, self._report))
        return lost

    def forget_export(self) -> None:
        """Call when learners were lost: their export may be lost too, so new engines wait for the next version."""
        self._is_proved = False

    def catch_up(self, engine: Engine) -> bool:
        """Give a new engine the newest published version; it plays only then. Returns False if the engine has to wait
        for the next version, because the learner sends its weights itself or died while publishing. Also returns False
        if the engine could not load the weights and was stopped: then the watch replaces it."""
        if self._exported is not None:
            if self._exported.direct is not None or not self._is_proved:
                self.waiting.append(engine)
                return False
            try:
                if not self._give(self._exported, [engine]):
                    return False
            except LearnersLostError:
                self.waiting.append(engine)  # the run detects lost learners; the watch detects a stopped engine
                return False
        self.engines.append(engine)
        return True

    def admit(self) -> list[Engine]:
        """Send the published weights to the engines that wait for them, while the learner is idle; returns those that
        may play from now on.

        Raises EngineError if no engine is left and the learner cannot send: it sleeps, or training is done.
        """
        if not self.waiting:
            return []
        if self.learners is None or self._config.placement == "colocated":
            if self.engines:
                return []  # the others continue to play until the next version
            raise EngineError(
                f"no engine of {self.name} is left, and with sync.channel: {self._config.sync.channel} a new one has "
                "to wait for the next version; continue with --resume"
            )
        assert self._exported is not None
        candidates, self.waiting = self.waiting, []
        exported = export(self.learners, self.version, self._probe, self._direct)
        try:
            admitted = self._give(exported, candidates)
        except LearnersLostError:
            self.waiting += candidates
            raise
        self.engines += admitted
        return admitted

    def _give(self, exported: Export, engines: Sequence[Engine]) -> list[Engine]:
        """Give new engines the version that the others play; returns those that have it. The rest were stopped.

        Raises WeightSyncError if no new engine can load it and no other engine plays it.
        """
        lost: dict[Engine, str] = {}
        try:
            with self._learners_to_blame():
                report, lost = self._hand_out(exported, engines)
                taken = [engine for engine in engines if engine not in lost]
                if self._probe is not None and taken:
                    lost |= verify_weights(exported, taken, self._config.sync, self._probe, report)[1]
        except WeightSyncError as error:
            if not self.engines:
                raise
            lost = dict.fromkeys(engines, str(error))
        for engine, reason in lost.items():
            self._recorder.record(EngineLostLine(engine.name, self.name, reason))
        return [engine for engine in engines if engine not in lost]

    def _hand_out(
        self, exported: Export, engines: Sequence[Engine], gate: Gate | None = None
    ) -> tuple[SyncReport, dict[Engine, str]]:
        """`publish`; if the channel broke, publish again through the object store, which then also serves engines that
        are added later."""
        report, lost = publish(exported, engines, self._config.sync, gate)
        if not report.broken_channels:
            return report, lost
        assert self.learners is not None
        self._exported = export(self.learners, exported.version, self._probe)
        if self._config.placement == "colocated":
            self._exported.wait()
        left = [engine for engine in engines if engine not in lost]
        again, lost_again = publish(self._exported, left, self._config.sync, gate)
        seconds = report.seconds + again.seconds
        return replace(again, seconds=seconds, broken_channels=1), lost | lost_again

    @contextlib.contextmanager
    def _learners_to_blame(self) -> Iterator[None]:
        """Turn a WeightSyncError into LearnersLostError if a learner rank has died: that is the cause."""
        try:
            yield
        except WeightSyncError:
            if (learners := self.learners) is not None:
                learners.check_alive(wait_s=5.0)
            raise

    def leave(self, engine: Engine) -> None:
        """Remove an engine."""
        self.engines = [other for other in self.engines if other is not engine]
        self.waiting = [other for other in self.waiting if other is not engine]

    def saved(self, stage: Stage) -> Path:
        """Where a run saves the model of a stage."""
        return self._folder / "models" / self._own(stage)

    def _own(self, stage: Stage) -> str:
        """The name of this policy's part of a stage."""
        return str(stage if len(self.roles) == 2 else stage.of_policy(self.name))

    def save_to(self, folder: Path, adapter_alone: bool = False) -> str:
        """Save the learner's weights as a model folder, or the adapters alone."""
        assert self.learners is not None
        self.learners.save_model(str(folder), adapter_alone)
        return str(folder)

    def save_state(self, folder: Path) -> None:
        """Save the learner group's whole state, to resume from."""
        assert self.learners is not None
        self.learners.save_state(str(folder / self.name))
        if self.stage_progress is not None:
            self.stage_progress.save(folder / self.name)

    def load_state(self, folder: Path, part_of: str | None) -> None:
        """`part_of`: the stream that the state was saved in, if any; its next part continues the same schedule."""
        assert self.learners is not None
        self.learners.load_state(str(folder / self.name))
        self._begun, self._saved, self.stage_progress = part_of, saved_in(folder / self.name), None
        self._stage_steps = self._reference_of = None

    @property
    def is_in_stage(self) -> bool:
        """The checkpoint loaded last was saved mid-stage, and that stage has not resumed yet."""
        return self._saved is not None

    def wake_learners(self) -> None:
        if self.learners is not None:
            self.learners.wake()

    def sleep_learners(self, keep_weights: bool = False) -> None:
        if self.learners is not None:
            self.learners.sleep(keep_weights)

    def close_learners(self) -> None:
        if self.learners is not None:
            self.learners.close()
            self.learners = None

    def _scored(self, games: list[GameSample], training_stage: TrainingStage) -> list[GameSample]:
        """The games with their log-probabilities under the current weights, and under those of the stage's start if
        they differ. The first step's games need none under the current weights: the learner still has these then."""
        assert self.learners is not None
        if training_stage.method == "imitation" and training_stage.kl_coeff == 0:
            return games  # nothing is compared with the previous weights
        if self._config.learner.reference != "recompute" and training_stage.method == "self_play":
            return [
                replace(game, turns=tuple(replace(turn, old_logprobs=turn.sampler_logprobs) for turn in game.turns))
                for game in games
            ]
        is_part = training_stage.part and self._reference_of == training_stage.stage
        if is_part or self._compares_with_start(training_stage):
            games = self.learners.score_reference(games, training_stage.temperature)
        first, rest = games[: training_stage.batch_games], games[training_stage.batch_games :]
        return first + self.learners.score_games(rest, training_stage.temperature)

    def _dump(self, stage: str, batch: Sequence[GameSample], report: StepReport) -> None:
        """Write the episodes and the report of a skipped step to skipped/."""
        folder = self._folder / "skipped"
        folder.mkdir(exist_ok=True)
        found = {
            "stage": stage,
            "step": report.step,
            "episodes": [game.episode_id for game in batch],
            "report": {key: str(value) for key, value in asdict(report).items()},
        }
        path = folder / f"{stage}-{report.step:05d}.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

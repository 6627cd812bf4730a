"""How a policy trains on a stage: which samples in which step, and compared with which weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cluster.learning.learner_group import LearnerGroup
from cluster.learning.stage_samples import TrainingStage
from cluster.tracking.recorder import Recorder
from cluster.tracking.time_split import TimeSplit
from spag_ray.config.run import RunConfig
from spag_ray.errors import LearnerError, RunFolderError
from spag_ray.game.rules import Role
from spag_ray.results.lines import ReferenceLine, StepLine, StepReport
from spag_ray.stages import BASE, IMITATED, Stage
from spag_ray.training_data.listened_turns import count_leading, spread
from spag_ray.training_data.replay import next_rows
from spag_ray.training_data.samples import GameSample, Logprobs, turns_of, with_column
from spag_ray.training_data.stage_spec import StageSpec

AVERAGE = "average"  # in place of the saved model that became the reference
_NONE = np.zeros(0, np.float32)

# (stage, steps done, steps, loss) -> shown
ShowStep = Callable[[str, int, int, float | None], None]


@dataclass
class StageProgress:
    """A stage under way: the log-probabilities of its turns at its start ([L] each; None: not needed yet), and the
    number of steps done. The scores of the start cannot be computed again later, so a checkpoint saves them. A stream
    is saved between its parts, never inside one. So the old log-probabilities of saved turns are the reference too,
    unless it is the start of self-play (objective.kl_reference), which is computed again."""

    stage: str
    old_logprobs: Sequence[Logprobs | None]
    num_steps_done: int = 0

    @classmethod
    def of(cls, stage: str, games: Sequence[GameSample]) -> StageProgress:
        """A stage at its start."""
        return cls(stage, [turn.old_logprobs for game in games for turn in game.turns])

    def save(self, folder: Path) -> None:
        """stage.json, and the log-probabilities of all turns in one array, with the length of each (0: none yet)."""
        logprobs = [_NONE if each is None else each for each in self.old_logprobs]
        values = np.concatenate([_NONE, *logprobs])
        np.savez(folder / "references.npz", values=values, lengths=np.array([len(each) for each in logprobs], np.int64))
        found = {"stage": self.stage, "num_steps_done": self.num_steps_done}
        (folder / "stage.json").write_text(json.dumps(found), encoding="utf-8")

    @classmethod
    def saved_in(cls, folder: Path) -> StageProgress | None:
        """What `save` wrote there, if it did."""
        path = folder / "stage.json"
        if not path.exists():
            return None
        with np.load(folder / "references.npz", allow_pickle=False) as arrays:
            lengths = arrays["lengths"]
            parts = np.split(arrays["values"], np.cumsum(lengths)[:-1]) if len(lengths) else []
        found = json.loads(path.read_text(encoding="utf-8"))
        scores = [part.astype(np.float32) if len(part) else None for part in parts]
        return cls(found["stage"], scores, found["num_steps_done"])

    def scored(self, games: Sequence[GameSample]) -> list[GameSample]:
        """The games with the log-probabilities of their start. Raises RunFolderError when these are not the games it
        was saved with."""
        if sum(len(game.turns) for game in games) != len(self.old_logprobs):
            raise RunFolderError(
                f"{self.stage} was being trained on {len(self.old_logprobs)} turns, but its log now has others: the "
                "log was changed or damaged; bring it back, or move every folder of checkpoints/ with -step- in its "
                "name away, to train the stage from its beginning; if none is left, start a new run with the newest "
                "folder of models/ as its model"
            )
        return with_column(games, "old_logprobs", self.old_logprobs)


@dataclass(eq=False, repr=False)
class PolicyTraining:
    """A policy in training, in all stages. `name` stamps its turns; `roles` are the seats that it plays; `learners`:
    None before their start and after the last stage. `stage_progress`: the stage that is under way, if it is not a
    stream's. `saved_progress`: the stage in which the checkpoint was saved that was loaded last, until it is resumed.
    `split`: what the run's loop waits for; whoever measures that sets it."""

    name: str
    roles: tuple[Role, ...]
    config: RunConfig
    folder: Path
    model: str
    recorder: Recorder
    learners: LearnerGroup | None = field(default=None, init=False)
    split: TimeSplit = field(default_factory=TimeSplit, init=False)
    stage_progress: StageProgress | None = field(default=None, init=False)
    saved_progress: StageProgress | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.forget()

    def forget(self) -> None:
        """The learners are new: they hold nothing, and have seen nothing."""
        self._begun: StageSpec | None = None
        self._reference_of: Stage | None = None  # with whose start they compare
        self._num_rows_taken = 0  # SFT rows, in all stages
        self._num_skipped = 0  # steps in a row, in all stages: a version of a stream may have fewer than end a run

    @property
    def group(self) -> LearnerGroup:
        """The learners, which must be there."""
        assert self.learners is not None
        return self.learners

    def learn(self, training_stage: TrainingStage, show: ShowStep) -> None:
        """Train on the policy's part of a stage. Raises LearnerError if too many steps in a row had no finite
        gradient."""
        games = list(training_stage.games) if len(self.roles) == 2 else turns_of(training_stage.games, self.roles[0])
        games.sort(key=lambda game: not game.turns)  # games with only listening turns come last
        sft = training_stage.sft
        stage = self._own(training_stage.stage)
        with self.split.phase("score"):
            self._keep_reference(training_stage)
        rows_per_step = self.config.self_play.sft_rows_per_step
        num_steps, batch_games = self._steps(games, training_stage)
        if training_stage.one_pass:
            num_steps = max(num_steps, -(-len(sft) // rows_per_step))
        if not num_steps:
            return  # this seat has nothing to train on: the other won every game
        self.group.check([*(turn for game in games for turn in game.turns + game.listening), *sft])
        games, stage_progress = self._begin(training_stage, stage, games, num_steps, show)
        batches = spread(games, batch_games, num_steps)
        if not training_stage.spec.is_part:
            self.stage_progress = stage_progress
        for step in range(stage_progress.num_steps_done, num_steps):
            if training_stage.one_pass:
                rows_per_step = (step + 1) * len(sft) // num_steps - step * len(sft) // num_steps
                self._num_rows_taken = step * len(sft) // num_steps
            rows = next_rows(len(sft), self._num_rows_taken, rows_per_step, self.config.seed) if sft else []
            report = self.group.step(batches[step], [sft[row] for row in rows], at_start=step == 0)
            self._num_rows_taken += len(rows)
            self.recorder.record(StepLine(stage, self.name, report))
            stage_progress.num_steps_done = step + 1
            show(f"{stage}: learn", step + 1, num_steps, report.loss)
            self._num_skipped = self._num_skipped + 1 if report.skipped else 0
            if report.skipped:
                self._dump(stage, batches[step], report)
            if self._num_skipped == self.config.learner.max_skipped_steps:
                raise LearnerError(
                    f"{stage}: {self._num_skipped} steps in a row had no finite gradient (loss {report.loss}) and were "
                    f"skipped; the batches are in {self.folder / 'skipped'}; lower the learning rate, or look at the "
                    "games"
                )

    def _steps(self, games: Sequence[GameSample], training_stage: TrainingStage) -> tuple[int, int | None]:
        """(optimiser steps, games of each; None: the games are spread evenly) of a stage or a part of a stream."""
        # A seat that only listens takes as many steps as the games of both seats would.
        num_leading = sum(bool(game.turns) for game in games) or count_leading(training_stage.games)
        if training_stage.part_steps and len(self.roles) == 1:
            # A seat has only a part of the games. With whole batches of them it would end mid-schedule.
            return min(len(games), num_leading, training_stage.part_steps), None
        return min(len(games), -(-num_leading // training_stage.batch_games)), training_stage.batch_games

    def _begin(
        self, training_stage: TrainingStage, stage: str, games: list[GameSample], num_steps: int, show: ShowStep
    ) -> tuple[list[GameSample], StageProgress]:
        """The stage's games, scored, at its start, or as saved in the checkpoint that was loaded last."""
        spec = training_stage.spec
        spec = replace(spec, num_steps=spec.num_steps or num_steps, name=spec.name or stage)
        saved, self.saved_progress = self.saved_progress, None
        begun, self._begun = self._begun, spec
        if saved is not None and saved.stage == stage:
            self.group.continue_stage(spec)
            games = saved.scored(self._without_gap(games) if self._takes_engines_logprobs(spec) else games)
            if self._compares_with_start(spec):
                with self.split.phase("score"):
                    games = self.group.score_reference(games, spec.temperature)
            return games, saved
        with self.split.phase("score"):
            games = self._scored(games, training_stage, partial(show, f"{stage}: reference", 0, num_steps, None))
        show(f"{stage}: learn", 0, num_steps, None)
        if begun is None or not spec.is_part or begun.name != spec.name:
            self.group.begin_stage(spec)
        elif begun != spec:  # resumed, perhaps with more rounds, or in a round with another rate
            self.group.continue_stage(spec)
        return games, StageProgress.of(stage, games)

    def _keep_reference(self, training_stage: TrainingStage) -> None:
        """Make the learners keep the weights that the KL term compares with: those of the model that self-play started
        with (kl_reference: start) or what became of them, or in a stream those of the stage's start: the current ones
        before its first part, and when it is resumed, those saved at the end of the previous stage."""
        if self._compares_with_start(training_stage.spec):
            if self.config.objective.kl_reference_average is None:
                self._load_start(training_stage.stage)
            else:
                self._average(training_stage.stage, self.config.objective.kl_reference_average)
            return
        if not training_stage.spec.is_part or not self.config.keeps_stage_start:
            return
        if training_stage.part == 0:
            self.group.keep_reference()
        elif self._reference_of != training_stage.stage:
            model = str(self.saved(training_stage.after)) if training_stage.after else self.model
            is_exact = self.group.load_reference(model)
            saved = str(training_stage.after or BASE)
            self.recorder.record(ReferenceLine(self.name, str(training_stage.stage), saved, is_exact))
        self._reference_of = training_stage.stage

    def _load_start(self, stage: Stage) -> None:
        """Make a saved model the reference: the one that self-play started with, or with kl_reference_every: n that of
        the newest round of n, 2n, ... before this stage. It has the learner's dtype, so it is exact after a resume."""
        every = self.config.objective.kl_reference_every
        num_rounds = 0 if every is None else max(0, stage.round - 1) // every * every
        saved = Stage.of_round(num_rounds) if num_rounds else IMITATED
        if self._reference_of == saved:
            return
        is_own = num_rounds or self.config.imitation.enabled
        self.group.load_reference(str(self.saved(saved) if is_own else self.model))
        self._reference_of = saved
        if num_rounds:
            self.recorder.record(ReferenceLine(self.name, str(stage), str(saved), is_exact=True))

    def _average(self, stage: Stage, share: float) -> None:
        """Move the reference once before each round, by the weights of the round before. The first time nothing was
        trained on yet in self-play: an average is in every checkpoint, and a run's objective does not change."""
        if self._reference_of is None:
            self.group.keep_reference()
        elif self._reference_of != stage:
            self.group.move_reference(share)
            self.recorder.record(ReferenceLine(self.name, str(stage), AVERAGE, is_exact=True))
        self._reference_of = stage

    def _compares_with_start(self, spec: StageSpec) -> bool:
        is_of_start = self.config.objective.kl_reference == "start" and spec.kl_coeff > 0
        return is_of_start and spec.method == "self_play"

    def _scored(
        self, games: list[GameSample], training_stage: TrainingStage, tell: Callable[[], None]
    ) -> list[GameSample]:
        """The games with their log-probabilities under the current weights, and under those of the stage's start if
        they differ. The first step's games need none under the current weights: the learner still has these then.
        `tell` is called before a pass over the games."""
        spec = training_stage.spec
        if spec.method == "imitation" and spec.kl_coeff == 0:
            return games  # nothing is compared with the previous weights
        if self._takes_engines_logprobs(spec):
            sampled = [turn.sampler_logprobs for game in games for turn in game.turns]
            return self._without_gap(with_column(games, "old_logprobs", sampled))
        tell()
        is_part = training_stage.part and self._reference_of == training_stage.stage
        if is_part or self._compares_with_start(spec):
            games = self.group.score_reference(games, spec.temperature)
        num_steps, batch_games = self._steps(games, training_stage)
        num_first = count_leading(games) // num_steps if batch_games is None else batch_games
        return games[:num_first] + self.group.score_games(games[num_first:], spec.temperature)

    def _takes_engines_logprobs(self, spec: StageSpec) -> bool:
        """Whether the engines' log-probabilities stand for those under the weights of the stage's start."""
        return self.config.learner.reference != "recompute" and spec.method == "self_play"

    @staticmethod
    def _without_gap(games: list[GameSample]) -> list[GameSample]:
        """No gap is measured between the engines' log-probabilities and themselves."""
        return with_column(games, "sampler_logprobs", [None] * sum(len(game.turns) for game in games))

    def _dump(self, stage: str, batch: Sequence[GameSample], report: StepReport) -> None:
        """Write the episodes and the report of a skipped step to skipped/."""
        folder = self.folder / "skipped"
        folder.mkdir(exist_ok=True)
        found = {
            "stage": stage,
            "step": report.step,
            "episodes": [game.episode_id for game in batch],
            "report": {key: str(value) for key, value in asdict(report).items()},
        }
        path = folder / f"{stage}-{report.step:05d}.json"
        path.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

    def saved(self, stage: Stage) -> Path:
        """Where a run saves the model of a stage."""
        return self.folder / "models" / self._own(stage)

    def _own(self, stage: Stage) -> str:
        """The name of this policy's part of a stage."""
        return str(stage if len(self.roles) == 2 else stage.of_policy(self.name))

    def save_progress(self, folder: Path) -> None:
        """Beside the learners' state."""
        (folder / "rows.json").write_text(json.dumps({"taken": self._num_rows_taken}), encoding="utf-8")
        if self.config.objective.kl_reference_average is not None and self._reference_of is not None:
            reference = {"moved_before": str(self._reference_of)}
            (folder / "reference.json").write_text(json.dumps(reference), encoding="utf-8")
        if self.stage_progress is not None:
            self.stage_progress.save(folder)

    def load_progress(self, folder: Path, begun: StageSpec, part_of: str | None) -> None:
        """The inverse of `save_progress`. `begun`: the stage that the checkpoint's learners had begun; `part_of`: the
        stream in which it was saved. Raises RunFolderError for damaged files."""
        if not begun.name and part_of is not None and begun.method == "self_play":  # of an earlier version
            begun = replace(begun, name=part_of, is_part=True)
        try:
            saved_progress = StageProgress.saved_in(folder)
            self._num_rows_taken = _saved_value(folder / "rows.json", "taken") or 0
            moved_before = _saved_value(folder / "reference.json", "moved_before")
            reference_of = moved_before and Stage.parse(moved_before)
        except MemoryError:
            raise  # nothing is damaged
        except Exception as error:  # a damaged archive of numpy may raise anything
            raise RunFolderError(
                f"{folder}: the stage that was under way cannot be read ({type(error).__name__}: {error}); to continue "
                "from an older checkpoint, move this one away"
            ) from error
        self._begun, self._reference_of = begun, reference_of
        self.saved_progress, self.stage_progress = saved_progress, None
        self._num_skipped = 0


def _saved_value(file: Path, key: str) -> Any:
    """None without the file."""
    return json.loads(file.read_text(encoding="utf-8"))[key] if file.exists() else None

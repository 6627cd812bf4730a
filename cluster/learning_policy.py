"""A policy that learns: its learner group, the engines that play it, its version.

One policy plays both seats, or an attacker and a defender learn side by side; each then has all of this of its own.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from cluster.arena_actor import Engine
from cluster.learner_group import LearnerGroup
from cluster.lesson import Lesson, Saved, UnderWay, saved_in
from cluster.metrics import Metrics
from cluster.places import Places
from cluster.transfer import DirectChannel
from cluster.weights import Export, Gate, Probe, SyncReport, export, prove, publish
from spag_ray.config import RunConfig
from spag_ray.errors import EngineError, LearnerError, LearnersLostError, WeightSyncError
from spag_ray.game import Role
from spag_ray.samples import GameSample, turns_of

# (stage, steps done, steps, loss) -> shown
ShowStep = Callable[[str, int, int, float | None], None]


class LearningPolicy:
    """`name` is what turns are stamped with; `roles` are the seats that it plays."""

    def __init__(
        self,
        name: str,
        roles: tuple[Role, ...],
        config: RunConfig,
        folder: Path,
        model: str,
        metrics: Metrics,
        probe: Probe | None = None,
        places: Places | None = None,
    ) -> None:
        self.name = name
        self.roles = roles
        self.version = 0
        self.model = model
        self.engines: list[Engine] = []
        self.learners: LearnerGroup | None = None
        self._config = config
        self._folder = folder
        self._metrics = metrics
        self._probe = probe
        self._places = places
        self.waiting: list[Engine] = []
        self._exported: Export | None = None
        self._is_proved = False  # what was exported last is on the engines, and they were compared with the learner
        self._report: SyncReport | None = None
        self._direct: DirectChannel | None = None
        self._begun: str | None = None
        self._saved: Saved | None = None
        self.under_way: UnderWay | None = None

    def start_learners(self) -> None:
        label = "learner" if self.name == "policy" else f"learner-{self.name}"
        self.learners = LearnerGroup(
            self.model,
            self._config.learner,
            self._config.objective,
            str(self._folder / "logs"),
            f"{label}-{self._folder.name}",
            self._places,
        )
        if self._config.sync.channel != "object_store":
            workers = self._config.engine.tensor_parallel_size
            self._direct = DirectChannel(self.learners, self._config.sync, workers)

    def check_learners(self) -> None:
        """Raises LearnersLostError for a rank that has died while nothing was asked of it."""
        if (learners := self.learners) is not None:
            learners.check_alive()

    def learn(self, lesson: Lesson, show: ShowStep) -> None:
        """Raises LearnerError when too many steps in a row had no finite gradient."""
        assert self.learners is not None
        games = list(lesson.games) if len(self.roles) == 2 else turns_of(lesson.games, self.roles[0])
        stage = lesson.stage if len(self.roles) == 2 else f"{lesson.stage}-{self.name}"
        if not games:
            return  # this seat has nothing to learn from: the other won every game
        self.learners.check([*(turn for game in games for turn in game.turns), *lesson.sft])
        num_steps = -(-len(games) // lesson.batch_games)
        under_way = self._begin(lesson, stage, games, num_steps, show)
        games = under_way.games
        if lesson.part_of is None:
            self.under_way = under_way
        rows_per_step = self._config.self_play.sft_rows_per_step if lesson.sft else 0
        num_skipped = 0
        for step in range(under_way.num_steps_done, num_steps):
            batch = games[step * lesson.batch_games : (step + 1) * lesson.batch_games]
            rows = [lesson.sft[(step * rows_per_step + row) % len(lesson.sft)] for row in range(rows_per_step)]
            report = self.learners.step(batch, rows, lesson.temperature, at_start=step == 0)
            self._metrics.record("step", stage=stage, policy=self.name, **asdict(report))
            under_way.num_steps_done = step + 1
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

    def _begin(self, lesson: Lesson, stage: str, games: list[GameSample], num_steps: int, show: ShowStep) -> UnderWay:
        """The stage at its beginning, or where the checkpoint was saved that was loaded last."""
        assert self.learners is not None
        saved, self._saved = self._saved, None
        if saved is not None and saved.stage == stage:
            return saved.of(games)
        show(f"{stage}: reference", 0, num_steps, None)
        games = self._with_reference(games, lesson)
        if lesson.part_of is None or lesson.part_of != self._begun:
            self._begun = lesson.part_of
            all_steps = lesson.stage_steps or num_steps
            self.learners.begin_stage(lesson.method, all_steps, lesson.learning_rate, lesson.kl_coeff)
        return UnderWay(stage, games)

    def export(self) -> None:
        """Begin to hand out the learner's weights as the next version. The version before is let go first: the object
        store need not hold two."""
        assert self.learners is not None
        self._exported, self._is_proved = None, False
        self._exported = export(self.learners, self.version + 1, self._probe, self._direct)
        if self._config.placement == "colocated":
            self._exported.wait()

    def publish(self, gate: Gate) -> list[Engine]:
        """What was exported becomes the version that every engine of this policy plays, those that wait for it too;
        returns the engines that were found dead."""
        assert self._exported is not None
        self.engines += self.waiting
        self.waiting = []
        with self._learners_to_blame():
            self._report, lost = publish(self._exported, self.engines, self._config.sync, gate)
        self.version = self._exported.version
        self.engines = [engine for engine in self.engines if engine not in lost]
        return lost

    def prove(self) -> list[Engine]:
        """Compare learner and engines after `publish`; returns the engines that were found dead."""
        assert self._exported is not None and self._report is not None
        lost: list[Engine] = []
        if self._probe is not None:
            self._report, lost = prove(self._exported, self.engines, self._config.sync, self._probe, self._report)
            self.engines = [engine for engine in self.engines if engine not in lost]
        self._is_proved = True
        self._metrics.record("sync", policy=self.name, **asdict(self._report))
        return lost

    def forget_export(self) -> None:
        """Learners were lost, and what they exported may be: whoever comes in now waits for the next version."""
        self._is_proved = False

    def catch_up(self, engine: Engine) -> bool:
        """Bring a new engine to the newest published version; it plays only then. Where the learner sends its weights
        itself, or has died while it published, the engine has to wait for the next one: returns False."""
        if self._exported is not None:
            if self._exported.direct is not None or not self._is_proved:
                self.waiting.append(engine)
                return False
            try:
                with self._learners_to_blame():
                    report, lost = publish(self._exported, [engine], self._config.sync)
                    if self._probe is not None and not lost:
                        _, lost = prove(self._exported, [engine], self._config.sync, self._probe, report)
            except LearnersLostError:
                self.waiting.append(engine)  # the run will see that; and if the engine was stopped, the watch will
                return False
            if lost:
                return False  # dead again; the watch will see it
        self.engines.append(engine)
        return True

    def admit(self) -> list[Engine]:
        """Send the weights as they were published to the engines that wait for them, while the learner does nothing
        else; returns those that may play from now on.

        Raises EngineError where no engine is left and the learner cannot: it sleeps, or has done its work.
        """
        if not self.waiting:
            return []
        if self.learners is None or self._config.placement == "colocated":
            if self.engines:
                return []  # the others play on until the next version
            raise EngineError(
                f"no engine of {self.name} is left, and with sync.channel: {self._config.sync.channel} a new one has "
                "to wait for the next version; go on with --resume"
            )
        assert self._exported is not None
        candidates, self.waiting = self.waiting, []
        exported = export(self.learners, self.version, self._probe, self._direct)
        try:
            with self._learners_to_blame():
                report, lost = publish(exported, candidates, self._config.sync)
            admitted = [engine for engine in candidates if engine not in lost]
            if self._probe is not None:
                _, lost = prove(exported, admitted, self._config.sync, self._probe, report)
        except LearnersLostError:
            self.waiting += candidates
            raise
        admitted = [engine for engine in admitted if engine not in lost]
        self.engines += admitted
        return admitted

    @contextlib.contextmanager
    def _learners_to_blame(self) -> Iterator[None]:
        """What an engine could not take because a learner rank is gone is that rank's fault: LearnersLostError."""
        try:
            yield
        except WeightSyncError:
            if (learners := self.learners) is not None:
                learners.check_alive(wait_s=5.0)
            raise

    def leave(self, engine: Engine) -> None:
        """An engine is gone."""
        self.engines = [other for other in self.engines if other is not engine]
        self.waiting = [other for other in self.waiting if other is not engine]

    def save(self, stage: str) -> str:
        """The learner's weights as a model folder of the run."""
        return self.save_to(self.saved(stage))

    def saved(self, stage: str) -> Path:
        """Where `save` puts the model of a stage."""
        return self._folder / "models" / (stage if len(self.roles) == 2 else f"{stage}-{self.name}")

    def save_to(self, folder: Path) -> str:
        assert self.learners is not None
        self.learners.save_model(str(folder))
        return str(folder)

    def save_state(self, folder: Path) -> None:
        """To go on from: everything of the learner group."""
        assert self.learners is not None
        self.learners.save_state(str(folder / self.name))
        if self.under_way is not None:
            self.under_way.save(folder / self.name)

    def load_state(self, folder: Path, part_of: str | None) -> None:
        """`part_of`: the stage in parts that it was saved in; its next part goes on with the same schedule."""
        assert self.learners is not None
        self.learners.load_state(str(folder / self.name))
        self._begun, self._saved, self.under_way = part_of, saved_in(folder / self.name), None

    @property
    def is_in_stage(self) -> bool:
        """The checkpoint that was loaded last was saved in the midst of a stage, which has not gone on yet."""
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

    def _with_reference(self, games: list[GameSample], lesson: Lesson) -> list[GameSample]:
        """The games with their log-probabilities at the stage's start. Those of the first step are not needed: there
        the learner is its own reference."""
        assert self.learners is not None
        if self._config.learner.reference != "recompute" and lesson.method == "self_play":
            return [
                replace(
                    game,
                    turns=tuple(replace(turn, reference_logprobs=turn.behaviour_logprobs) for turn in game.turns),
                )
                for game in games
            ]
        first, rest = games[: lesson.batch_games], games[lesson.batch_games :]
        return first + self.learners.score_games(rest, lesson.temperature)

    def _dump(self, stage: str, batch: Sequence[GameSample], report: Any) -> None:
        """Which episodes made a step that was skipped, and what the step looked like."""
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

"""A policy that learns: its learner group, its version, and how engines get that. The Fleet has the engines.

Either one policy plays both seats, or an attacker and a defender learn separately, each with its own learner group,
engines and version.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import ray

from cluster.learning.direct_channel import DirectChannel, gather
from cluster.learning.learner_group import LearnerGroup
from cluster.learning.policy_training import PolicyTraining, ShowStep
from cluster.learning.stage_samples import TrainingStage
from cluster.learning.weight_sync import Export, Gate, Probe, export, publish, verify_weights
from cluster.planning.reservation import Reservation
from cluster.runtime.output_files import label_of
from cluster.runtime.ray_session import first_line
from cluster.types import Engine, Says, says_nothing
from spag_ray.errors import EngineError, LearnerError, LearnersLostError, WeightSyncError
from spag_ray.results.lines import SyncLine, SyncReport


@dataclass(eq=False, repr=False)
class LearningPolicy(PolicyTraining):
    """`says` is told what the start of its learners waits for."""

    probe: Probe | None = None
    reservation: Reservation | None = None
    says: Says = says_nothing
    version: int = field(default=0, init=False)
    _published: Export | None = field(default=None, init=False)  # the version that was exported last
    # A folder with the learner's weights, and the version that they are or become; whether they are it already.
    _kept: tuple[str, int] | None = field(default=None, init=False)
    _is_published: bool = field(default=False, init=False)
    _direct: DirectChannel | None = field(default=None, init=False)

    @property
    def next_version(self) -> int:
        """The version of the next published weights."""
        return self.version + 1

    def place_learners(self) -> None:
        """Ask for the learners' processes, and wait for nothing."""
        self.forget()
        label = "learner" if self.name == "policy" else f"learner-{self.name}"
        self.learners = LearnerGroup(
            self.model,
            self.config,
            log_folder=str(self.folder / "logs"),
            name=f"{label}-{label_of(self.folder)}",
            reservation=self.reservation,
            says=partial(self.says, label),
        )
        if self.config.channel != "object_store":
            self._direct = DirectChannel(self.learners, self.config)

    def prepare_learners(self) -> None:
        """The part of their start that uses no GPU."""
        self.group.prepare()

    @property
    def has_learners(self) -> bool:
        """Whether they have started."""
        return self.learners is not None and self.learners.has_started

    def start_learners(self) -> None:
        """What is left of their start; nothing if they have started."""
        if self.learners is None:
            self.place_learners()
        if not self.group.has_started:
            self.group.start()

    def check_learners(self) -> None:
        """Raises LearnersLostError for a rank that has died while idle."""
        if (learners := self.learners) is not None:
            learners.check_alive()

    def learn(self, training_stage: TrainingStage, show: ShowStep) -> None:
        self._kept, self._is_published = None, False
        super().learn(training_stage, show)

    def export(self) -> None:
        """Start to export the learner's weights as the next version. The previous version is released first, so the
        object store need not hold two."""
        self._published = None
        self._published = self._export(self.next_version, self._direct)

    def _export(self, version: int, direct: DirectChannel | None = None) -> Export:
        exported = export(self.group, version, self.probe, direct)
        if self.config.placement == "colocated":
            exported.wait()
        return exported

    def publish(self, engines: Sequence[Engine], gate: Gate) -> dict[Engine, str]:
        """Give the exported version to these engines; returns {engine: why} of those that were stopped."""
        assert self._published is not None
        with self._learners_to_blame(self._published):
            report, lost = self._hand_out(self._published, engines, gate)
        self._published.report = report
        self.version, self._is_published = self._published.version, True
        return lost

    def verify_weights(self, engines: Sequence[Engine]) -> dict[Engine, str]:
        """Compare learner and engines after `publish`; returns {engine: why} of those that were stopped."""
        published = self._published
        assert published is not None
        assert published.report is not None
        lost: dict[Engine, str] = {}
        if self.probe is not None:
            published.report, lost = verify_weights(published, engines, self.config, self.probe, published.report)
        published.is_proved = True
        self.recorder.record(SyncLine(self.name, published.report))
        return lost

    def forget_export(self) -> None:
        """Call when learners were lost: their export may be lost too, so new engines wait for the next version."""
        if self._published is not None:
            self._published.is_proved = False

    def catch_up(self, engine: Engine, others_play: bool) -> dict[Engine, str] | None:
        """Give a new engine the newest published version. Returns {engine: why} if it could not load it and was
        stopped, {} if it has it now, and None if it has to wait for the next version: the learner sends its weights
        itself, or died while publishing."""
        published = self._published
        if published is None:
            return None if self.version else {}  # without a version, it plays the model that it has loaded
        if published.direct is not None or not published.is_proved:
            return None
        try:
            return self._give(published, [engine], others_play)
        except LearnersLostError:
            return None  # the run detects lost learners; the heartbeats detect a stopped engine

    def admit(self, engines: Sequence[Engine], others_play: bool) -> dict[Engine, str] | None:
        """Give the published weights to engines that wait for them, while the learner is idle. Returns {engine: why} of
        those that could not load them and were stopped, None if the learner cannot send now.

        If no other engine plays and the learner cannot send (it sleeps, or training is done), they load the model that
        was saved of this version. Raises EngineError if there is none, and WeightSyncError if none can load it.
        """
        if self.learners is None or self.config.placement == "colocated":
            if others_play:
                return None  # they continue to play until the next version
            if self._kept is not None and self._kept[1] == self.version:
                loads = [engine.handle.load_saved.remote({None: self._kept}) for engine in engines]
                answers = gather(engines, loads, self.config.sync.timeout_s)
                answers.check(f"{self._kept[0]}: not loaded by ")
                return answers.lost
            raise EngineError(
                f"no engine of {self.name} is left, and with sync.channel: {self.config.channel} a new one has "
                "to wait for the next version; continue with --resume"
            )
        return self._give(export(self.learners, self.version, self.probe, self._direct), engines, others_play)

    def _give(self, exported: Export, engines: Sequence[Engine], others_play: bool) -> dict[Engine, str]:
        """Give new engines the version that the others play; returns {engine: why} of those that were stopped.

        Raises WeightSyncError if no new engine can load it and no other engine plays it.
        """
        lost: dict[Engine, str] = {}
        try:
            with self._learners_to_blame(exported):
                report, lost = self._hand_out(exported, engines)
                taken = [engine for engine in engines if engine not in lost]
                if self.probe is not None and taken:
                    lost |= verify_weights(exported, taken, self.config, self.probe, report)[1]
        except WeightSyncError as error:
            if not others_play:
                raise
            lost = dict.fromkeys(engines, str(error))
        return lost

    def _hand_out(
        self, exported: Export, engines: Sequence[Engine], gate: Gate | None = None
    ) -> tuple[SyncReport, dict[Engine, str]]:
        """`publish`; if the channel broke, publish again through the object store, which then also serves engines that
        are added later."""
        report, lost = publish(exported, engines, self.config, gate)
        if not report.broken_channels:
            return report, lost
        again_exported = self._export(exported.version)
        again_exported.is_proved = self._published is not None and self._published.is_proved
        self._published = again_exported  # whole: engines that come meanwhile are given it
        left = [engine for engine in engines if engine not in lost]
        again, lost_again = publish(again_exported, left, self.config, gate)
        seconds = report.seconds + again.seconds
        return replace(again, seconds=seconds, broken_channels=1), lost | lost_again

    @contextlib.contextmanager
    def _learners_to_blame(self, exported: Export) -> Iterator[None]:
        """Turn a WeightSyncError into LearnersLostError if a learner rank has died: that is the cause, and the engines
        that were stopped have not failed; and into LearnerError if one could not compute a bucket."""
        try:
            yield
        except WeightSyncError as refused:
            if (learners := self.learners) is not None:
                try:
                    learners.check_alive(wait_s=5.0)
                    latest = self._published  # another one, if a channel broke
                    again = () if latest is None or latest is exported else latest.bucket_refs
                    for bucket in (*exported.bucket_refs, *again):  # one at a time: they may be another node's
                        try:
                            learners.results([bucket])
                        except ray.exceptions.RayTaskError as error:
                            raise LearnerError(
                                f"a learner rank could not compute a bucket: {first_line(error)}"
                            ) from error
                        except ray.exceptions.RayError:  # an object is lost: what the engines said is told
                            continue
                except LearnersLostError as error:
                    error.stopped = error.stopped or refused.stopped
                    raise
            raise

    def save_to(self, folder: Path, adapter_alone: bool = False) -> str:
        """Save the learner's weights as a model folder, or the adapters alone."""
        self.group.save_model(str(folder), adapter_alone)
        if not adapter_alone:
            self.is_saved_in(folder)
        return str(folder)

    def is_saved_in(self, folder: Path) -> None:
        """A model folder has the learner's weights."""
        self._kept = str(folder), self.version if self._is_published else self.next_version

    def save_state(self, folder: Path) -> None:
        """Save the learner group's whole state, to resume from."""
        self.group.save_state(str(folder / self.name))
        self.save_progress(folder / self.name)

    def load_state(self, folder: Path, part_of: str | None) -> None:
        """`part_of`: the stream that the state was saved in, if any; its next part continues the same schedule, if this
        policy had begun it."""
        self._kept, self._is_published = None, False
        self.load_progress(folder / self.name, self.group.load_state(str(folder / self.name)), part_of)

    @property
    def is_in_stage(self) -> bool:
        """The checkpoint loaded last was saved mid-stage, and that stage has not resumed yet."""
        return self.saved_progress is not None

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

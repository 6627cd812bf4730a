"""How a run is saved and resumed: checkpoints, and new learners for lost ones."""

from __future__ import annotations

import time
from dataclasses import replace

from cluster.fleet.publisher import published_in
from cluster.learning.stage_samples import TrainingStage
from cluster.run.checkpoint import Checkpoints, RunState, has_weights_of, keep_matches, mid_stage, set_aside, to_resume
from cluster.run.parts import RunParts
from spag_ray.errors import LearnersLostError
from spag_ray.results.lines import CheckpointLine, ResumedLine, SetAsideLine
from spag_ray.stages import STREAM


class Recovery:
    """Saves and restores words, league, matches, tasks and the policies of one run."""

    def __init__(self, parts: RunParts) -> None:
        self._parts = parts
        self._config = parts.config
        lease = parts.control.lease
        self._folder = lease.folder
        self._checkpoints = Checkpoints(lease.folder, self._config.checkpoint, lambda: lease.check(now=True))
        self._save_seconds = 0.0
        self._last = RunState()  # as last saved or restored
        self._saved_at = time.monotonic()

    def measure_checkpoint(self) -> None:
        """Write a checkpoint at the start, so that its duration is known when a stop is requested."""
        if not self._config.checkpoint.enabled:
            return
        self._parts.publisher.wake_learners()
        self.checkpoint("start", RunState())
        self._parts.publisher.wake_engines()
        left, num_gib = self._config.checkpoint.stop_within_s, self._checkpoints.newest_bytes() / 2**30
        fits = "one is saved then" if 1.5 * self._save_seconds < left else "which may be too short for one"
        self._parts.status.note(
            f"a checkpoint takes {self._save_seconds:.1f} s and {num_gib:.2f} GiB while the optimiser has no state; "
            f"SIGTERM leaves {left:g} s, {fits}"
        )

    def checkpoint(self, name: str, state: RunState) -> RunState:
        """Write `state`, completed with words and league; returns it as written."""
        if not self._config.checkpoint.enabled:
            return state
        words, league = self._parts.words.state(), self._parts.league.league.as_json()
        return self._write(name, replace(state, words=words, league=league))

    def between_steps(self, stage: TrainingStage) -> None:
        """Save a stage every `checkpoint.every_s` seconds, and before a stop if time is left. A stream is saved only
        between its versions, so with enough time left it first finishes this one. Raises StopRequestedError."""
        control = self._parts.control
        if stage.spec.is_part:
            if not self.time_to_save():
                control.check_stop()
            return
        self._save_in_stage(stage)
        if control.is_waiting:
            while control.is_waiting:
                time.sleep(0.1)
                control.lease.check()
                if control.is_save_wanted:
                    self._save_in_stage(stage)
            self._save_in_stage(stage)  # a stop may have been requested during the pause
        control.check_stop()

    def _save_in_stage(self, stage: TrainingStage) -> None:
        """Save if requested, if due, or if the run is to stop and time is left."""
        num_done = sum(policy.stage_progress.num_steps_done for policy in self._parts.policies if policy.stage_progress)
        if self._config.checkpoint.enabled and num_done and (self.is_due or self.time_to_save()):
            # Words and league as at the stage's start: when resumed, the stage starts there and gets the same games.
            # The league has drawn opponents for it since the last checkpoint.
            state = replace(self._last, league=self._parts.league.at_stage_start)
            self._write(mid_stage(str(stage.stage), num_done), state)

    def _write(self, name: str, state: RunState) -> RunState:
        began = time.perf_counter()
        state = replace(state, order=self._last.order + 1, results=self._parts.matches.as_json())
        with self._parts.ground.split.phase("checkpoint"), self._checkpoints.writing(name, state) as folder:
            for policy in self._parts.policies:
                policy.save_state(folder)
        self._save_seconds = time.perf_counter() - began
        self._last, self._saved_at, self._parts.control.is_save_wanted = state, time.monotonic(), False
        self._parts.league.is_saved(state.league)
        num_bytes = self._checkpoints.newest_bytes()
        self._parts.recorder.record(CheckpointLine(name, state.stage, round(self._save_seconds, 3), num_bytes))
        return state

    @property
    def is_due(self) -> bool:
        """Whether a session wants a checkpoint, or the last one is `checkpoint.every_s` old."""
        return self._parts.control.is_save_wanted or time.monotonic() - self._saved_at > self._config.checkpoint.every_s

    def time_to_save(self) -> bool:
        """Whether the run is to stop and a checkpoint fits into the time left, judged by the last one."""
        return 0 < 1.5 * self._save_seconds < self._parts.control.seconds_left

    def restore(self) -> RunState:
        """Go back to the newest checkpoint, or to the beginning: learners load it, and engines play it. Logs of later
        games, played by weights that are lost, are set aside."""
        self._parts.control.lease.check(now=True)
        published = published_in(self._folder)
        for policy in self._parts.policies:
            policy.version = max(policy.version, published.get(policy.name, 0))
        self._checkpoints.settle()
        found = to_resume(self._folder, self._config.checkpoint)
        state = self._last = found[1] if found is not None else RunState()
        self._save_seconds = self._checkpoints.newest_seconds()
        for log in set_aside(self._folder / "episodes", state, self._config):
            self._parts.recorder.record(SetAsideLine(log))
        self._parts.buffer.get(self._parts.buffer.handle.reread.remote())
        self._parts.words.go_back_to(state.words)
        self._parts.matches.go_back_to(state.results)
        keep_matches(self._folder / "matches.json", state, self._config)
        self._parts.tasks.keep(lambda stage: has_weights_of(stage, state, self._config))
        self._parts.league.restore(state.league)
        is_new = found is None and not any(policy.version for policy in self._parts.policies)
        if is_new:  # engines already play the learners' first weights
            return state
        self._parts.publisher.wake_learners()
        if found is not None:
            self._parts.status.set_status(f"resuming from {found[0].name}")
            for policy in self._parts.policies:
                policy.load_state(found[0], str(STREAM) if state.parts else None)
            version = self._parts.policies[0].version
            self._parts.recorder.record(ResumedLine(state.stage, found[0].name, version))
        self._parts.publisher.publish()
        return state

    def restart_learners(self, error: LearnersLostError) -> None:
        """Start new ranks for a group that lost one; `restore` then says where to resume."""
        self._parts.restarts.count("learners", error)
        self._parts.callbacks.begins_again()
        self._parts.status.set_status("restarting the learners")
        for policy in self._parts.policies:
            policy.close_learners()
            policy.forget_export()
        self._parts.publisher.start_learners()

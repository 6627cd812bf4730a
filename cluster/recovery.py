"""What a run writes down to be gone on with, and how it goes on: checkpoints, published versions, other learners."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from cluster.checkpoint import Checkpoints, RunState, belongs, kept_matches, set_aside
from cluster.lesson import Lesson
from cluster.runtime import get
from spag_ray.episode_log import write_atomically
from spag_ray.errors import LearnersLostError
from spag_ray.words import WordStream

if TYPE_CHECKING:
    from cluster.run import Run


class Recovery:
    """Of one run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._checkpoints = Checkpoints(run.folder, run.config.checkpoint)
        self._save_seconds = 0.0
        self._last = RunState()  # as it was saved, or restored
        self._saved_at = time.monotonic()
        self.is_wanted = False  # by somebody who asked for one

    def say_how_long(self) -> None:
        """At the start, so that a notice to stop finds it measured."""
        if not self._run.config.checkpoint.enabled:
            return
        self._run.wake_learners()
        self.checkpoint("start", RunState())
        self._run.wake_engines()
        left, num_gib = self._run.config.checkpoint.stop_within_s, self._checkpoints.newest_bytes() / 2**30
        fits = "one is saved then" if 1.5 * self._save_seconds < left else "which may be too short for one"
        self._run.note(
            f"a checkpoint takes {self._save_seconds:.1f} s and {num_gib:.2f} GiB while the optimiser has no state; "
            f"SIGTERM leaves {left:g} s, {fits}"
        )

    def checkpoint(self, name: str, state: RunState) -> RunState:
        """`state` and all that it does not say itself, on disk; returns it as it was written."""
        run = self._run
        if not run.config.checkpoint.enabled:
            return state
        words, league = run.words.state(), run.league.league.as_json()
        return self._write(name, replace(state, words=words, league=league))

    def between_steps(self, lesson: Lesson) -> None:
        """In a stage, steps are saved every `checkpoint.every_s` seconds, and when the run is to stop and time is left;
        a stream comes first to where it is saved anyway. Raises StopRequestedError."""
        run = self._run
        if lesson.part_of is not None:
            if not self.time_to_save():
                run.check_stop()
            return
        self._save_in_stage(lesson)
        if run.is_paused and run.stop_at is None:
            while run.is_paused and run.stop_at is None:
                time.sleep(0.1)
                if self.is_wanted:
                    self._save_in_stage(lesson)
            self._save_in_stage(lesson)  # told to stop meanwhile, perhaps
        run.check_stop()

    def _save_in_stage(self, lesson: Lesson) -> None:
        """If somebody wants it, or it is due, or the run is to stop and time is left."""
        run = self._run
        num_done = sum(policy.under_way.num_steps_done for policy in run.policies if policy.under_way)
        is_due = self.is_wanted or time.monotonic() - self._saved_at > run.config.checkpoint.every_s
        if run.config.checkpoint.enabled and num_done and (is_due or self.time_to_save()):
            # Words and league as they were when the stage began: it is begun again, and comes to the same games.
            self._write(f"{lesson.stage}-step-{num_done}", self._last)

    def _write(self, name: str, state: RunState) -> RunState:
        run = self._run
        began = time.perf_counter()
        state = replace(state, order=self._last.order + 1, results=run.results_as_json())
        with self._checkpoints.writing(name, state) as folder:
            for policy in run.policies:
                policy.save_state(folder)
        self._save_seconds = time.perf_counter() - began
        self._last, self._saved_at, self.is_wanted = state, time.monotonic(), False
        num_bytes = self._checkpoints.newest_bytes()
        run.metrics.record(
            "checkpoint", name=name, stage=state.stage, seconds=round(self._save_seconds, 3), num_bytes=num_bytes
        )
        return state

    def time_to_save(self) -> bool:
        """Whether the run is to stop, and a checkpoint fits into the time that is left, by what the last one took."""
        left = (self._run.stop_at or 0.0) - time.monotonic()
        return 0 < 1.5 * self._save_seconds < left

    def restore(self) -> RunState:
        """Where to go on: at the newest checkpoint, which is then what learners hold and engines play; or at the
        beginning. Logs of games that were played beyond it, by weights that are not there any more, are set aside."""
        run = self._run
        published = self._published()
        for policy in run.policies:
            policy.version = max(policy.version, published.get(policy.name, 0))
        found = self._checkpoints.newest()
        state = self._last = found[1] if found is not None else RunState()
        self._save_seconds = self._checkpoints.newest_seconds()
        for log in set_aside(run.folder / "episodes", state, run.config):
            run.metrics.record("set_aside", log=log)
        get(run.buffer.reread.remote())
        words = run.words.resumed(0, []) if state.words is None else WordStream.from_state(state.words)
        run.go_back_to(words, state.results, kept_matches(run.folder / "matches.json", state, run.config))
        run.task_evaluation.keep(lambda stage: belongs(f"eval-{stage}", state, run.config))
        run.league.restore(state.league)
        is_new = found is None and not any(policy.version for policy in run.policies)
        if is_new:  # engines play what learners begin with
            return state
        run.wake_learners()
        if found is not None:
            run.say(f"going on from {state.stage or 'the beginning'}")
            for policy in run.policies:
                policy.load_state(found[0], "stream" if state.parts else None)
            run.metrics.record("resumed", stage=state.stage, checkpoint=found[0].name, version=run.version)
        run.publish()
        return state

    def restart_learners(self, error: LearnersLostError) -> None:
        """Other ranks in the place of a group that lost one; `restore` then says where to go on."""
        run = self._run
        run.restarts.count("learners", error)
        run.say("starting the learners again")
        for policy in run.policies:
            policy.close_learners()
            policy.forget_export()
        run.start_learners()

    def note_published(self, versions: Mapping[str, int]) -> None:
        """{policy: the version that engines are about to be given}: none of them is used again, whatever happens."""
        write_atomically(self._run.folder / "published.json", json.dumps(dict(versions)))

    def _published(self) -> dict[str, int]:
        path = self._run.folder / "published.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}

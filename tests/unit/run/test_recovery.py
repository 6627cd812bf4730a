"""When a checkpoint is saved mid-stage."""

import shutil
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.learning.policy_training import StageProgress
from cluster.learning.stage_samples import TrainingStage
from cluster.run.parts import RunControl
from cluster.run.recovery import Recovery
from spag_ray.config.loading import parse_config
from spag_ray.errors import LeaseLostError, RunFolderError, StopRequestedError
from spag_ray.game.rules import Role
from spag_ray.host.folder_lease import FolderLease
from spag_ray.stages import Stage
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.stage_spec import StageSpec
from tests.support.waiting import wait_until


def recovery_of(tmp_path: Path, **checkpoint: Any) -> tuple[Recovery, RunControl, list[str]]:
    """A Recovery that took a second for its last checkpoint, what pauses or stops it, and the names of those it
    writes."""
    config = parse_config({"checkpoint": checkpoint})
    control = RunControl(FolderLease.take(tmp_path))
    stage_progress = StageProgress("spag-1", [], num_steps_done=3)
    policies: Any = [SimpleNamespace(stage_progress=stage_progress) for _ in range(2)]
    league = SimpleNamespace(at_stage_start=None)
    parts: Any = SimpleNamespace(config=config, control=control, policies=policies, league=league)
    recovery: Any = Recovery(parts)
    names: list[str] = []

    def write(name: str, state: Any) -> None:
        names.append(name)
        recovery._saved_at, control.is_save_wanted = time.monotonic(), False

    recovery._write, recovery._save_seconds = write, 1.0
    return recovery, control, names


def training_stage(is_part: bool = False) -> TrainingStage:
    return TrainingStage(Stage.of_round(1), StageSpec("self_play", 0, 1e-5, 0.1, is_part=is_part), [], [], 8)


def test_it_is_saved_when_it_is_due_or_wanted(tmp_path: Path) -> None:
    recovery, control, names = recovery_of(tmp_path)
    recovery.between_steps(training_stage())
    assert names == []
    control.save_soon()
    recovery.between_steps(training_stage())
    recovery.between_steps(training_stage())
    assert names == ["spag-1-step-6"]
    another = tmp_path / "another"  # the first one's lease is held
    another.mkdir()
    recovery, _, names = recovery_of(another, every_s=0.01)
    time.sleep(0.02)
    recovery.between_steps(training_stage())
    assert names == ["spag-1-step-6"]


@pytest.mark.parametrize(("left_s", "saved"), [(60.0, ["spag-1-step-6"]), (1.2, [])])
def test_a_run_that_is_to_stop_saves_if_that_fits(left_s: float, saved: list[str], tmp_path: Path) -> None:
    recovery, control, names = recovery_of(tmp_path)
    control.stop_soon(left_s)
    with pytest.raises(StopRequestedError):
        recovery.between_steps(training_stage())
    assert names == saved


def stepping(recovery: Any, expected: type[Exception]) -> tuple[threading.Thread, list[Exception]]:
    """A thread that has begun to wait between two steps, and the expected error that ended it."""
    ended: list[Exception] = []

    def step() -> None:
        try:
            recovery.between_steps(training_stage())
        except expected as error:
            ended.append(error)

    waiting = threading.Thread(target=step, daemon=True)
    waiting.start()
    return waiting, ended


def test_one_that_is_paused_saves_when_it_is_told_to_and_when_it_is_stopped(tmp_path: Path) -> None:
    recovery, control, names = recovery_of(tmp_path)
    control.is_paused = True
    waiting, stopped = stepping(recovery, StopRequestedError)
    control.save_soon()
    wait_until(lambda: names, 10)
    assert names == ["spag-1-step-6"]
    assert waiting.is_alive()
    control.stop_soon(60)
    waiting.join(10)
    assert names == ["spag-1-step-6"] * 2
    assert stopped


def test_one_that_is_paused_mid_stage_ends_when_another_run_takes_its_folder(tmp_path: Path) -> None:
    recovery, control, _ = recovery_of(tmp_path)
    control.is_paused = True
    waiting, lost = stepping(recovery, LeaseLostError)
    shutil.rmtree(tmp_path / "lease")
    waiting.join(5)
    assert lost


def test_a_stream_comes_to_where_it_is_saved_anyway(tmp_path: Path) -> None:
    recovery, control, names = recovery_of(tmp_path)
    control.stop_soon(60)
    recovery.between_steps(training_stage(is_part=True))
    control.stop_soon(1)
    with pytest.raises(StopRequestedError):
        recovery.between_steps(training_stage(is_part=True))
    assert names == []


def test_what_was_scored_at_the_start_comes_back_to_the_same_turns(tmp_path: Path) -> None:
    def game(number: int, *logprobs: tuple[float, ...] | None) -> GameSample:
        turns = tuple(Sample((1,), (2, 3), 1.0, old_logprobs=each) for each in logprobs)
        return GameSample(f"g/{number}", Role.ATTACKER, 1.0, turns)

    games = [game(0, None), game(1, (-0.1, -2.5), (-1 / 3, -0.7)), game(2, (-4.0, -0.0))]
    replace(StageProgress.of("spag-1", games), num_steps_done=1).save(tmp_path)
    plain = [game(0, None), game(1, None, None), game(2, None)]
    found = StageProgress.saved_in(tmp_path)
    assert found is not None
    assert (found.stage, found.num_steps_done) == ("spag-1", 1)
    assert found.scored(plain) == games
    with pytest.raises(RunFolderError, match="trained on 4 turns, but its log now has others") as refused:
        found.scored(plain[:2])
    assert "every folder of checkpoints/ with -step- in its name" in str(refused.value)
    assert "if none is left, start a new run" in str(refused.value), "checkpoint.keep_last may all be mid-stage"
    assert StageProgress.saved_in(tmp_path / "nothing") is None

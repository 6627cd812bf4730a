"""What a run measures is drawn as it was written: by TensorBoard's files, and by W&B where that is installed."""

import importlib
import importlib.util
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest

from cluster.tracking import wandb
from cluster.tracking.recorder import Recorder
from cluster.tracking.wandb import _id, check_tracking
from spag_ray.config.loading import parse_config, to_yaml
from spag_ray.config.parts import TrackingConfig
from spag_ray.errors import ConfigError, RunFolderError
from spag_ray.results.curves import Curves
from spag_ray.results.evaluations import Evaluation
from spag_ray.results.lines import (
    BufferLine,
    EloLine,
    EngineFigures,
    EngineLeftLine,
    EngineLine,
    EvaluationLine,
    ExploitabilityLine,
    GameFigures,
    Line,
    OpponentLine,
    PlayLine,
    RestartLine,
    SamplesLine,
    StepLine,
    StepReport,
    SyncLine,
    SyncReport,
)
from tests.support.not_here import not_here
from tests.support.runs import drawn_by_tensorboard, records_of

TENSORBOARD = TrackingConfig()


def steps_at(*steps: tuple[str, str, int]) -> list[int | None]:
    """Where (stage, policy, step in it) are drawn."""
    curves = Curves()
    lines = [StepLine(stage, policy, StepReport(number, loss=1.0)) for stage, policy, number in steps]
    return [None if (points := curves.points(5.0, line)) is None else points.x for line in lines]


def test_optimiser_steps_are_numbered_through_the_stages_of_a_policy() -> None:
    assert steps_at(*[("imitated", "policy", n) for n in (1, 2, 3)], ("spag-1", "policy", 1)) == [1, 2, 3, 4]
    stream = [("spag-1", "policy", 1), ("spag-1", "policy", 2), ("spag-2", "policy", 3), ("spag-2", "policy", 4)]
    assert steps_at(*stream) == [1, 2, 3, 4], "a stream is one stage to the learner"
    two = [("spag-1-attacker", "attacker", 1), ("spag-1-defender", "defender", 1), ("spag-2-attacker", "attacker", 1)]
    assert steps_at(*two) == [1, 1, 2]


def test_a_step_that_is_made_again_is_drawn_once_and_those_after_it_go_on() -> None:
    cut = [("spag-1", "policy", n) for n in (1, 2, 3)] + [("spag-2", "policy", n) for n in (1, 2)]
    again = [("spag-2", "policy", n) for n in (1, 2, 3)]
    assert steps_at(*cut, *again) == [1, 2, 3, 4, 5, None, None, 6]


def test_curves_are_told_apart_by_phase_policy_and_match() -> None:
    curves = Curves()

    def names(line: Line) -> list[str]:
        points = curves.points(5.0, line)
        return [] if points is None else sorted(points.values)

    step = names(StepLine("spag-1", "attacker", StepReport(1, loss=0.1)))
    assert {"step/loss/self_play/attacker", "step/skipped/self_play/attacker"} <= set(step)
    assert all(name.endswith("/self_play/attacker") for name in step)
    assert "step/kl/self_play/attacker" not in step
    evaluated = PlayLine("eval-spag-1", "taboo", 2, 3, 9, 90, 1.0, 3.0, 90.0, {"tied game": 3})
    assert "play/tied_game/evaluation/taboo" in names(evaluated)
    assert "play/games/match-spag-1-base/taboo" in names(replace(evaluated, stage="match-spag-1-base"))
    assert names(OpponentLine("past-0", 4)) == ["opponent/version/past-0"]
    task = Evaluation("base", "arc_easy", "acc", 0.5, None, 40, 0)
    assert "evaluation/value/arc_easy/acc" in names(EvaluationLine("policy", task))
    assert "play/games/evaluation/kuhn" in names(replace(evaluated, game="kuhn"))
    assert names(SamplesLine("round 1", "kuhn", 3, {})) == ["samples/decided/kuhn"]
    assert names(SamplesLine("round 1", "taboo", 0, {"attacker": float("nan")})) == ["samples/decided/taboo"]


def test_elo_and_the_figures_of_engines_and_games_are_curves_over_versions() -> None:
    curves = Curves()
    elo = EloLine("spag-1", "taboo", 3, "imitated", 40.5, {"attacker": 60.0, "defender": 21.0})
    engine = EngineLine("spag-1", "engine-policy-0", 3, EngineFigures(2.0, 0.5, kv_cache_max=0.25))
    figures = GameFigures(reward_mean={"attacker": 0.5}, tie_share=0.25)
    played = PlayLine("spag-1", "taboo", 3, 3, 9, 90, 1.0, 3.0, 90.0, {}, figures=figures)
    names: dict[str, Any] = {}
    for line in (elo, engine, played):
        points = curves.points(5.0, line)
        assert points is not None
        assert (points.axis, points.x) == ("version", 3)
        names |= points.values
    assert names["elo/elo/taboo"] == 40.5
    assert names["elo/elo_attacker/taboo"] == 60.0
    assert names["engine/kv_cache_max/self_play/engine-policy-0"] == 0.25
    assert names["play/reward_mean_attacker/self_play/taboo"] == 0.5
    assert names["play/tie_share/self_play/taboo"] == 0.25
    assert not any("against" in name for name in names), "text is no curve"


def test_a_solved_games_figures_are_curves_over_versions() -> None:
    curves = Curves()
    line = ExploitabilityLine(
        "spag-1", "kuhn", 3, {"0/check": 0.25}, {"nash_conv": 0.5, "odd name": 1.0, "value": float("nan")}
    )
    points = curves.points(5.0, line)
    assert points is not None
    assert (points.axis, points.x) == ("version", 3)
    assert points.values == {"exploitability/nash_conv/kuhn": 0.5, "exploitability/odd_name/kuhn": 1.0}
    assert curves.points(6.0, line) is None, "a stage that was measured again is drawn once"


def test_what_happened_is_text_at_its_second() -> None:
    curves = Curves()
    assert curves.points(100.0, None) is None, "a kind of line that is not known"
    line = RestartLine("engine-policy-0", "crash", "gone")
    first, second = curves.points(107.9, line), curves.points(107.9, line)
    assert first is not None
    assert second is not None
    assert first.values == {"restart": "what: engine-policy-0, cause: crash, reason: gone"}
    assert (first.x, second.x) == (7, 8), "two of one second are both seen"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "config.yaml").write_text(to_yaml(parse_config({})))
    return tmp_path


def write_some(metrics: Recorder, steps: range) -> None:
    for step in steps:
        metrics.record(StepLine("spag-1", "policy", StepReport(step, loss=0.1, kl=step / 7, ratio_max=float("nan"))))
        metrics.record(BufferLine(waiting=step, oldest_s=1.5))
    metrics.record(SyncLine("policy", SyncReport(steps.stop, 0.25, num_bytes=2**31 + 1)))


def test_event_files_say_what_metrics_jsonl_says(folder: Path) -> None:
    metrics = Recorder(folder, TENSORBOARD)
    write_some(metrics, range(1, 5))
    metrics.record(RestartLine("buffer", "crash", "its process ended"))
    metrics.close()
    drawn = drawn_by_tensorboard(folder)
    assert drawn["step/kl/self_play"] == [(n, pytest.approx(n / 7)) for n in range(1, 5)]
    assert drawn["step/loss/self_play"] == [(n, np.float32(0.1)) for n in range(1, 5)]
    assert drawn["sync/num_bytes"] == [(5, np.float32(2**31 + 1))]
    assert [value for _, value in drawn["buffer/waiting"]] == [1, 2, 3, 4]
    assert drawn["restart/text_summary"] == [(0, "what: buffer, cause: crash, reason: its process ended")]
    assert "step/ratio_max/self_play" not in drawn, "a number that is not finite is no point of a curve"
    ((step, config),) = drawn["config/text_summary"]
    assert step == 0
    assert "    model: smollm2-135m-instruct" in str(config)


def test_event_files_are_given_no_values_of_environment_variables(folder: Path) -> None:
    env = {"engine": {"env": {"HF_TOKEN": "unspoken"}}, "learner": {"env": {"KEY": "unspoken"}}}
    (folder / "config.yaml").write_text(to_yaml(parse_config(env)))
    Recorder(folder, TENSORBOARD).close()
    written = b"".join(path.read_bytes() for path in folder.glob("events.*"))
    assert b"HF_TOKEN" in written
    assert b"KEY" in written
    assert b"unspoken" not in written


def test_a_resumed_run_writes_its_event_file_anew_with_what_a_kill_lost_and_nothing_twice(folder: Path) -> None:
    code = (
        "import os; from pathlib import Path\n"
        "from tests.unit.run.test_tracking import TENSORBOARD, Recorder, write_some\n"
        f"metrics = Recorder(Path({str(folder)!r}), TENSORBOARD)\n"
        "write_some(metrics, range(1, 60)); os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).resolve().parents[3]
    killed = subprocess.run([sys.executable, "-c", code], cwd=root, timeout=100, check=False)
    assert killed.returncode == -9
    assert len(records_of(folder, "step")) == 59
    assert "sync/seconds" not in drawn_by_tensorboard(folder), "the last of it was still in its memory"

    with (folder / "metrics.jsonl").open("a") as file:
        file.write('{"time": 1, "kind": "st')  # a crash tore it
    metrics = Recorder(folder, TENSORBOARD)
    write_some(metrics, range(55, 63))  # from a checkpoint after step 54
    metrics.close()
    assert len(list(folder.glob("events.*"))) == 1, "the killed attempt's file is replaced"
    drawn = drawn_by_tensorboard(folder)
    assert [x for x, _ in drawn["step/loss/self_play"]] == list(range(1, 63))
    assert [x for x, _ in drawn["sync/seconds"]] == [60, 63]
    for points in drawn.values():
        assert [x for x, _ in points] == sorted({x for x, _ in points})
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines() if line.endswith("}")]
    assert len(lines) == 2 * (59 + 8) + 2
    assert lines[-1]["version"] == 63
    assert metrics.last("step", 2) == [line for line in lines if line["kind"] == "step"][-2:]
    assert metrics.last(None, 5000) == lines
    assert metrics.last("nothing", 3) == metrics.last("step", 0) == []


def test_a_run_begun_without_tensorboard_is_drawn_whole_once_it_asks_for_it(folder: Path) -> None:
    metrics = Recorder(folder)
    write_some(metrics, range(1, 9))
    metrics.close()
    assert not drawn_by_tensorboard(folder)
    Recorder(folder, TENSORBOARD).close()
    assert [x for x, _ in drawn_by_tensorboard(folder)["step/loss/self_play"]] == list(range(1, 9))


def test_lines_that_are_not_what_they_should_be_draw_nothing_and_are_kept(folder: Path) -> None:
    """The run is resumed over them."""
    sync = {"time": 5.0, "kind": "sync", "policy": "policy", "version": 3, "seconds": 0.5}
    odd = [{"time": 6.0, "kind": "step"}, {**sync, "version": "four"}, {"time": 7.0, "kind": "weather", "wind": 3}]
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in [sync, *odd]))
    metrics = Recorder(folder, TENSORBOARD)
    metrics.close()
    assert metrics.last(None, 10) == [sync, *odd]
    drawn = drawn_by_tensorboard(folder)
    assert drawn["sync/seconds"] == [(3, 0.5)]
    assert not any(name.startswith(("step", "weather")) for name in drawn)


def fill_the_disk_of(path: Path) -> None:
    """Of this process's file: the kernel answers its writes as on a full disk."""
    for link in Path("/proc/self/fd").iterdir():
        if link.exists() and link.resolve() == path:
            full = os.open("/dev/full", os.O_WRONLY)
            os.dup2(full, int(link.name))
            os.close(full)


def test_event_files_that_the_disk_does_not_take_are_left_and_the_run_goes_on(folder: Path) -> None:
    notes: list[str] = []
    metrics = Recorder(folder, TENSORBOARD, notes.append)
    fill_the_disk_of(next(folder.glob("events.*")))
    write_some(metrics, range(1, 200))
    metrics.close()
    (note,) = notes
    assert note.startswith("TensorBoard is off from now on: ")
    assert "No space left on device" in note
    assert len(records_of(folder, "step")) == 199


class Fails:
    """A tracker whose library raises what no contract names."""

    def write(self, points: Any) -> None:
        raise RuntimeError("its process has ended")

    def close(self) -> None:
        raise RuntimeError("its process has ended")


@pytest.mark.parametrize("writes", [True, False])
def test_whatever_a_tracker_raises_the_run_goes_on(writes: bool, folder: Path) -> None:
    notes: list[str] = []
    metrics = Recorder(folder, note=notes.append)
    metrics._drawers["Tracker"] = cast(Any, Fails())
    if writes:
        write_some(metrics, range(1, 3))
    metrics.close()
    (note,) = notes
    assert note.startswith("Tracker is off from now on: its process has ended")
    assert metrics._file.closed


def test_wandb_that_does_not_end_is_waited_for_with_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wandb, "FINISH_WITHIN_S", 0.1)
    never = threading.Event()
    run = object.__new__(wandb.WandbRun)
    run._run = SimpleNamespace(finish=never.wait)
    with pytest.raises(ConnectionError, match=r"within 0\.1 s; upload it with `wandb sync`"):
        run.close()
    never.set()
    run._run = SimpleNamespace(finish=lambda: 1 / 0)
    with pytest.raises(ConnectionError, match="division by zero"):
        run.close()


def test_wandbs_process_does_not_outlive_the_wait_for_it(tmp_path: Path) -> None:
    """wandb would wait for it without a bound when this process exits."""
    core = shutil.copy("/bin/sleep", tmp_path / "wandb-core")
    with subprocess.Popen([core, "60"]) as service, subprocess.Popen(["/bin/sleep", "60"]) as other:
        wandb._end_service()
        assert service.wait(5) == -signal.SIGKILL
        assert other.poll() is None, "no other child"
        other.kill()


def test_a_disk_without_room_for_metrics_ends_the_run_in_one_line(folder: Path) -> None:
    metrics = Recorder(folder)
    fill_the_disk_of(folder / "metrics.jsonl")
    with pytest.raises(RunFolderError, match=r"metrics.jsonl: cannot be written \(No space left on device\)"):
        metrics.record(EngineLeftLine("e", "p"))


def test_wandb_that_is_asked_for_has_to_be_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    config = parse_config({"tracking": {"wandb": {"project": "taboo"}}}).tracking
    assert config.wandb is not None, "no network unless it is asked for"
    assert config.wandb.mode == "offline", "no network unless it is asked for"
    check_tracking(TrackingConfig())
    monkeypatch.setitem(sys.modules, "wandb", None)  # as where it is not
    with pytest.raises(ConfigError, match="wandb is not installed here; pip install wandb"):
        check_tracking(config)


def test_wandb_offline_is_given_the_same_curves_and_a_resumed_run_is_the_same_run(folder: Path) -> None:
    if importlib.util.find_spec("wandb") is None:
        not_here("wandb is not installed: pip install wandb")
    settings = parse_config({"engine": {"env": {"TOKEN": "unspoken"}}})
    (folder / "config.yaml").write_text(to_yaml(settings))
    config = TrackingConfig.model_validate({"tensorboard": False, "wandb": {"project": "taboo"}})
    for steps in (range(1, 5), range(4, 7)):
        metrics = Recorder(folder, config)
        write_some(metrics, steps)
        metrics.close()
    lives = sorted((folder / "wandb").glob("offline-run-*/*.wandb"))
    assert len(lives) == 2
    assert len({life.name for life in lives}) == 1
    rows: list[Mapping[str, Any]] = []
    deadline = time.monotonic() + 30
    while not any(row.get("version") == 7 for row in rows):  # wandb's own process has its time
        assert time.monotonic() < deadline, rows
        time.sleep(0.1)
        rows = [row for life in lives for row in logged(life)]
    losses = [(row["optimiser_step"], row["step/kl/self_play"]) for row in rows if "step/kl/self_play" in row]
    assert losses == [(n, pytest.approx(n / 7)) for n in range(1, 7)]
    assert [row["version"] for row in rows if "sync/seconds" in row] == [5, 7]
    written = b"".join(path.read_bytes() for path in (folder / "wandb").rglob("*") if path.is_file())
    assert b"TOKEN" in written
    assert b"unspoken" not in written


def logged(path: Path) -> Iterator[Mapping[str, Any]]:
    """What wandb's own file holds: records in LevelDB's log format, which cuts them at every 32 KiB."""
    records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")

    data, at, whole = path.read_bytes(), 7, b""
    while at + 7 < len(data):
        if 2**15 - at % 2**15 < 7:
            at += 2**15 - at % 2**15
        length, part = struct.unpack_from("<HB", data, at + 4)
        whole += data[at + 7 : at + 7 + length]
        at += 7 + length
        if part in (1, 4):  # it is all there, or this was its end
            record, whole = records.Record.FromString(whole), b""
            if record.HasField("history"):
                items = record.history.item
                yield {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}


def test_a_copied_run_folder_has_a_run_of_its_own_on_wandb_and_a_moved_one_keeps_its(tmp_path: Path) -> None:
    run, copied, moved = (tmp_path / name for name in ("run", "copied", "moved"))
    (run / "wandb").mkdir(parents=True)
    (run / "wandb" / "id.txt").write_text("0123456789abcdef\n")  # of an earlier version
    assert _id(run) == _id(run) == "0123456789abcdef"
    shutil.copytree(run, copied)
    assert _id(copied) == _id(copied) != "0123456789abcdef", "two runs would be drawn as one"
    run.rename(moved)
    run.mkdir()
    assert _id(run) != "0123456789abcdef", "a new run in its place"
    assert _id(moved) == _id(moved) == "0123456789abcdef"
    (tmp_path / "other").symlink_to(tmp_path)
    assert _id(tmp_path / "other" / "moved") == "0123456789abcdef", "the same folder by another path"

"""The learner's benchmarks on a tiny model: beside the published way and TRL on the same rows, and its steps alone."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import learner_steps
from benchmarks.machine import LOOKS_ONLY, Place
from tests.support.not_here import needs_trl

pytestmark = pytest.mark.parallel

ROOT = Path(__file__).resolve().parents[2]
TINY = ("--quick", "--device", "cpu", "--shape", "tiny", "--games", "2")


def test_three_ways_are_measured_on_the_same_rows() -> None:
    needs_trl()
    command = [sys.executable, "-m", "benchmarks.learner", *TINY]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    ways = result["ways"]["chat"]
    assert ways.keys() == {"published", "ours", "trl"}
    for figures in ways.values():
        assert figures["tokens_per_s"] > 0
        assert 0 < figures["mfu"] < 1
        assert figures["peak_gib"] > 0
    assert ways["ours"]["computed_tokens_per_s"] < ways["ours"]["tokens_per_s"], "a prefix is computed once"
    assert ways["trl"]["computed_tokens_per_s"] > ways["trl"]["tokens_per_s"], "rows are padded"
    assert (result["device"], result["card"], result["model"]) == ("cpu", None, "tiny")
    assert result["versions"]["trl"]


def test_steps_in_a_setting_are_measured_and_recorded(tmp_path: Path) -> None:
    options = ("--device", "cpu", "--only", "8 games, ZeRO-1", "--profile", "--traces", str(tmp_path))
    command = [sys.executable, "-m", "benchmarks.learner_steps", *options]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    result = json.loads(ended.stdout.splitlines()[-1])
    (row,) = result["rows"]  # layers are compiled on GPUs alone
    assert row["setting"] == "135m, 8 games, ZeRO-1"
    assert row["tokens_per_s"] > 0
    assert row["skipped"] == 0
    assert row["profile"] == {}, "there is no GPU to wait"
    (trace,) = tmp_path.iterdir()
    assert json.loads(trace.read_text())["traceEvents"]


def test_a_setting_that_is_none_is_refused_and_one_that_fails_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("out of memory")

    for name, value in {"CUDA_VISIBLE_DEVICES": "", **LOOKS_ONLY}.items():  # what is set here ends with the test
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(learner_steps, "measured", fails)
    monkeypatch.setattr(learner_steps, "place_of", lambda options: Place("cpu", None, None))
    for only, code in (("no such", 2), ("135m, 8 games, ZeRO-1", 1)):
        monkeypatch.setattr("sys.argv", ["learner_steps", "--device", "cpu", "--only", only])
        with pytest.raises(SystemExit) as ended:
            learner_steps.main()
        assert ended.value.code == code

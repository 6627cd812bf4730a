"""The checks of a GPU machine that need DeepSpeed and vLLM, tried on CPUs with a tiny model."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from cluster.gpu_check.run_checks import run_all
from tests.support.bare_environment import python_with

ROOT = Path(__file__).resolve().parents[2]


def checked(only: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    failed = run_all("tiny", device="cpu", only=only)
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert failed == 0, found
    return {row["check"]: row for row in found["checks"]}


@pytest.mark.long  # the same checks as in the bare environment below
def test_the_learners_checks_pass(capsys: pytest.CaptureFixture[str]) -> None:
    rows = checked("learner ZeRO-3,learner asleep,export", capsys)
    assert {row["status"] for row in rows.values()} == {"pass"}
    assert len(rows) == 3
    assert rows["learner ZeRO-3"]["figures"]["last_loss"] < rows["learner ZeRO-3"]["figures"]["first_loss"]


@pytest.mark.long  # a vLLM engine that loads weights, as in test_policy_contract
def test_the_engines_check_passes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = checked("engine", capsys)
    assert rows["engine"]["status"] == "pass"
    assert 0 < rows["engine"]["figures"]["gap_nats"] < 0.05
    assert rows["engine"]["figures"]["repeated"] == rows["engine"]["figures"]["changed"] == 2
    assert rows["engine"]["figures"]["reload_s"] > 0
    assert rows["engine on two GPUs"]["status"] == "skip"


def test_the_learners_half_is_seen_where_nothing_else_is_installed(tmp_path: Path) -> None:
    """Torch, transformers, safetensors, accelerate and DeepSpeed: the learner's checks run, the others say what they
    need."""
    python = python_with(("torch", "transformers", "safetensors", "accelerate", "deepspeed"), tmp_path / "bare")
    only = "learner ZeRO-3,learner asleep,export,engine,run ipc"
    command = [str(python), "-m", "benchmarks.gpu_check", "--device", "cpu", "--shape", "tiny", "--only", only]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = {row["check"]: row for row in json.loads(ended.stdout.splitlines()[-1])["checks"]}
    passed = [name for name, row in rows.items() if row["status"] == "pass"]
    assert passed == ["learner ZeRO-3", "learner asleep", "export"]
    assert "not hashed" in rows["export"]["text"]
    assert rows["engine"]["text"] == "needs vllm, xxhash, which is not installed here"
    assert "ray" in rows["run ipc"]["text"]

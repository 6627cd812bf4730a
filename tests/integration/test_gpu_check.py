"""The checks of a GPU machine that need DeepSpeed, vLLM and Ray, tried on CPUs with a tiny model."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cluster.gpu_check.check import Check, Told, model
from cluster.gpu_check.processes import LOG, in_a_process
from cluster.gpu_check.run_checks import CHECKS, ENGINE, MODULES
from tests.support.bare_environment import python_with
from tests.support.gpu_checks import starts_without_memory
from tests.support.waiting import wait_until

ROOT = Path(__file__).resolve().parents[2]
ON_CPU = ["-m", "benchmarks.gpu_check", "--device", "cpu", "--shape", "tiny"]
MARK = "SPAG_RAY_TEST_OF_CHECKS"


@pytest.mark.long  # 4 minutes; the checks by themselves: tests/unit/learn/test_gpu_check.py
@pytest.mark.timeout(700)  # 5 minutes on 2 cores that another program uses as well
def test_every_check_runs_on_a_cpu_and_passes() -> None:
    command = [sys.executable, *ON_CPU]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=650, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    rows = {row["check"]: row for row in found["checks"]}
    assert list(rows) == ["model", *(check.name for check in CHECKS)]
    skipped = {name: row["text"] for name, row in rows.items() if row["status"] == "skip"}
    assert skipped == {
        "run ipc": "needs 1 GPU: its weights go from GPU memory to GPU memory",
        "run nccl": "needs 2 GPUs: its weights go from GPU memory to GPU memory",
        "engine on two GPUs": "GPUs: needs 2",
        "run two learner ranks": "GPUs: needs 2",
    }
    assert {row["status"] for row in rows.values()} == {"pass", "skip"}, ended.stdout
    assert rows["learner ZeRO-3"]["figures"]["last_loss"] < rows["learner ZeRO-3"]["figures"]["first_loss"]
    engine = rows["engine"]["figures"]
    assert 0 < engine["gap_nats"] < 0.05
    assert 0 <= engine["score_gap_nats"] < 0.05
    assert engine["repeated"] == engine["changed"] == 2
    assert engine["reload_s"] > 0
    for channel in ("object_store", "shared_memory"):
        assert rows[f"run {channel}"]["figures"]["sync_s"] > 0


def test_the_learners_half_is_seen_where_nothing_else_is_installed(tmp_path: Path) -> None:
    """Torch, transformers, safetensors, accelerate and DeepSpeed: the learner's checks run, the others say what they
    need."""
    python = python_with(("torch", "transformers", "safetensors", "accelerate", "deepspeed"), tmp_path / "bare")
    only = "learner ZeRO-3,learner asleep,export,engine,run ipc"
    command = [str(python), *ON_CPU, "--only", only]
    ended = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env={"PYTHONPATH": str(ROOT)})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    rows = {row["check"]: row for row in json.loads(ended.stdout.splitlines()[-1])["checks"]}
    passed = [name for name, row in rows.items() if row["status"] == "pass"]
    assert passed == ["model", "learner asleep", "learner ZeRO-3", "export"]
    assert "not hashed" in rows["export"]["text"]
    assert rows["engine"]["text"] == "needs vllm, xxhash, which is not installed here"
    assert "ray" in rows["run ipc"]["text"]


def test_a_run_that_is_cut_off_ends_with_all_its_processes() -> None:
    command = [sys.executable, *ON_CPU, "--only", "run shared_memory", "--minutes", "0.5"]
    ended = subprocess.run(
        command, capture_output=True, text=True, cwd=ROOT, timeout=120, check=False, env={**os.environ, MARK: "1"}
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    row = json.loads(ended.stdout.splitlines()[-1])["checks"][-1]
    assert (row["status"], row["text"].split(",")[0][:13]) == ("not reached", "cut off after")
    wait_until(lambda: not marked(), 5, "the server that checks are forked from sees that its parent has ended")


def marked() -> list[str]:
    """The command lines of processes with MARK in their environment."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and f"\0{MARK}=1\0".encode() in (folder / "environ").read_bytes():
                found.append((folder / "cmdline").read_text().replace("\0", " "))
        except OSError:
            continue
    return found


def test_an_engine_that_does_not_start_tells_what_its_core_has_met(tmp_path: Path) -> None:
    """vLLM's own error only says that there is a root cause "above"."""
    told = Told("tiny", tmp_path / "own", "cpu")
    made = in_a_process(Check("model", model, 1, MODULES), told, 120)
    assert made is not None
    assert made.passed
    found = in_a_process(Check("engine", starts_without_memory, 1, ENGINE), told, 180)
    assert found is not None
    assert not found.passed
    assert "See root cause above" in (told.folder / LOG).read_text()
    assert "available KV cache memory" in found.text

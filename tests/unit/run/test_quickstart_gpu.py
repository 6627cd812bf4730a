"""`make quickstart-gpu`: refused without a GPU; with one, a run that fits on it."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from cluster.planning.placement_faults import placement_fault
from cluster.types import NodeResources
from learners.deepspeed_config import deepspeed_config, sleep_fault
from spag_ray.config.loading import load_config
from tests.support.not_here import not_here

ROOT = Path(__file__).resolve().parents[3]


def make(target: str, nvidia_smi: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """What `make -n` says where `nvidia-smi` runs this script. It prints what it would do and does nothing."""
    if shutil.which("make") is None:
        not_here("no `make` on the PATH")
    program = folder / "nvidia-smi"
    program.write_text(f"#!/bin/sh\n{nvidia_smi}\n")
    program.chmod(0o755)
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
    environment["PATH"] = f"{folder}{os.pathsep}{os.environ['PATH']}"
    return subprocess.run(["make", "-n", target], cwd=ROOT, env=environment, capture_output=True, text=True)


@pytest.mark.parametrize("target", ["quickstart-gpu", "gpu-check"])
def test_a_machine_without_a_gpu_is_refused_with_one_line(target: str, tmp_path: Path) -> None:
    ended = make(target, "exit 9", tmp_path)
    assert ended.returncode == 2
    first, *others = ended.stderr.splitlines()
    assert first.startswith("spag-ray: nvidia-smi finds no GPU here")
    assert all(line.startswith("make") for line in others)


def test_the_quickstart_takes_turns_on_one_gpu(tmp_path: Path) -> None:
    ended = make("quickstart-gpu", "echo 'GPU 0: one'", tmp_path)
    assert ended.returncode == 0, ended.stderr
    [command] = [line for line in ended.stdout.splitlines() if "spag-ray quickstart" in line]
    assert ".venv-gpu/bin/spag-ray quickstart -o" in command
    plain = load_config("configs/quickstart.yaml")
    config = load_config("configs/quickstart.yaml", re.findall(r"-o (\S+)", command))
    assert (config.model, config.placement) == (plain.model, "colocated")
    assert config.learner.zero_stage == 2
    assert placement_fault(config, [NodeResources("here", 2, 1)]) is None
    assert placement_fault(config, [NodeResources("here", 2, 0)])
    assert sleep_fault(deepspeed_config(config.learner, on_gpu=True)) is None

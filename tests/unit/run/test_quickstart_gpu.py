"""The quickstart on a GPU: refused without one; with one, a run that fits on it."""

import os
import shutil
import subprocess
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cluster.checks import vllm_build
from cluster.cli import app
from cluster.planning.placement import placement_fault
from cluster.types import NodeResources
from spag_ray.config.loading import load_config
from spag_ray.config.run import RunConfig
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


@pytest.mark.parametrize("target", ["quickstart-gpu", "gpu-check", "gpu-bench"])
def test_a_machine_without_a_gpu_is_refused_with_one_line(target: str, tmp_path: Path) -> None:
    ended = make(target, "exit 9", tmp_path)
    assert ended.returncode == 2
    first, *others = ended.stderr.splitlines()
    assert first.startswith("spag-ray: nvidia-smi finds no GPU here")
    assert all(line.startswith("make") for line in others)


def test_it_installs_the_gpu_lock_and_runs_the_quickstart_from_there(tmp_path: Path) -> None:
    ended = make("quickstart-gpu", "echo 'GPU 0: one'", tmp_path)
    assert ended.returncode == 0, ended.stderr
    [command] = [line for line in ended.stdout.splitlines() if "spag-ray quickstart" in line]
    assert ".venv-gpu/bin/spag-ray quickstart" in command


def test_every_part_of_the_benchmark_has_time_for_a_cold_start() -> None:
    [command] = [line for line in (ROOT / "Makefile").read_text().splitlines() if "--quick" in line]
    assert "for part in learner selfplay weight_sync; do timeout -k 10 300 " in command


@pytest.mark.parametrize(
    ("builds", "on_gpu"), [({"vllm": "0.32.0"}, True), ({"vllm": "0.32.0+cpu"}, False), ({}, False)]
)
def test_the_quickstart_takes_turns_on_one_gpu_where_vllm_is_built_for_gpus(
    builds: dict[str, str], on_gpu: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(package: str) -> str:
        if package not in builds:
            raise PackageNotFoundError(package)
        return builds[package]

    given: list[RunConfig] = []
    monkeypatch.setattr(vllm_build, "version", version)

    def print_plan(config: RunConfig) -> bool:
        given.append(config)
        return True

    monkeypatch.setattr("cluster.planning.plan.print_plan", print_plan)
    ended = CliRunner().invoke(app, ["quickstart", "-o", "engine.gpu_memory_utilization=0.3", "--dry-run"])
    assert ended.exit_code == 0, ended.output
    [config] = given
    plain = load_config("configs/quickstart.yaml")
    assert (config.model, config.placement) == (plain.model, "colocated")
    assert config.engine.gpu_memory_utilization == 0.3, "what the user says comes last"
    assert (config.learner.num_gpus == 0.5) == on_gpu
    assert (placement_fault(config, [NodeResources("here", 2, 0)]) is not None) == on_gpu
    assert placement_fault(config, [NodeResources("here", 2, 1)]) is None

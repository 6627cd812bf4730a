"""The check of a GPU machine, as far as a machine without one can try it: its own code, on a tiny model."""

from __future__ import annotations

import json
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

import learners.head
from cluster.checks.preflight import check_files
from cluster.gpu_check import engine_checks, layout_checks, learner_checks, run_checks
from cluster.gpu_check.check import Check, Finding, Told
from cluster.gpu_check.layout_checks import layouts
from cluster.gpu_check.learner_checks import attention, head
from cluster.gpu_check.run_checks import CHECKS, reason_of, run_all, why_not
from cluster.planning.placement_faults import placement_fault
from cluster.types import NodeResources
from learners import attention as attention_module
from learners.engine import move_frozen
from spag_ray.config.loading import load_config
from spag_ray.training_data.stage_spec import StageSpec

# What a machine with torch, transformers and DeepSpeed alone does not have; DeepSpeed itself brings pydantic.
ABSENT = ("ray", "vllm", "pydantic", "xxhash", "peft", "lm_eval")
WITHOUT = """
import sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {absent}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Absent())
from cluster.gpu_check.run_checks import main
sys.exit(main(["--check", "attention", "--shape", "tiny", "--device", "cpu", "--folder", "."]))
"""


def test_what_it_needs_is_imported_when_a_check_begins_and_not_before() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("{absent}", repr(set(ABSENT)))], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert json.loads(ended.stdout.splitlines()[-1])["passed"]


def test_arithmetic_is_compared_and_not_only_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    told = Told("tiny", tmp_path, "cpu")
    found = attention(told)
    assert found.passed
    assert 0 < found.figures["worst_error"] < 0.02
    assert head(told).passed
    monkeypatch.setattr(learner_checks, "MOST_ERROR", found.figures["worst_error"] / 2)
    assert not attention(told).passed
    monkeypatch.setattr("learners.head._at_least_float32", lambda dtype: dtype)  # log-probabilities in bfloat16
    assert not head(told).passed


def test_trees_and_padded_rows_are_timed_at_every_length_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = layouts(Told("tiny", tmp_path, "cpu")).figures
    for length in (250, 500):
        assert found[f"padded_tokens_{length}"] > found[f"tree_tokens_{length}"] >= length
        for name in ("tree_ms", "padded_ms", "tree_layer_ms", "padded_layer_ms", "mask_ms"):
            assert found[f"{name}_{length}"] > 0

    def times(told: Told, samples: list[Any]) -> dict[str, float]:
        at = len(samples) * attention_module.FLEX_BLOCK_TOKENS / 128
        return {"tree_layer_ms": 30.0, "padded_layer_ms": at, "mask_ms": 28.0}

    monkeypatch.setattr(layout_checks, "_times", times)
    found = layouts(Told("qwen2.5-1.5b", tmp_path)).figures
    assert found["padded_layer_ms_4096_blocks_256"] == 2 * found["padded_layer_ms_4096"]
    assert found["faster_from_tokens"] == 2048, "31 ms against 48 of 12 games, and against 28 of 7 games at 1024"
    assert attention_module.FLEX_BLOCK_TOKENS == 128


def test_a_few_logits_that_are_rounded_to_the_next_number_are_no_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A logit between 2 and 4 that is rounded to the next bfloat16 differs by 1/64."""
    computed = learners.head._TargetLogprobs.apply

    def with_steps(share: float) -> Finding:
        def apply(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
            logprobs, entropies = computed(*arguments)
            steps = (torch.arange(len(logprobs)) < share * len(logprobs)) / 64
            return logprobs + steps, entropies

        monkeypatch.setattr("learners.head._TargetLogprobs", SimpleNamespace(apply=apply))
        return head(Told("tiny", tmp_path, "cpu"))

    assert with_steps(0.005).passed
    assert not with_steps(0.02).passed


def test_what_is_missing_is_said() -> None:
    def nothing(_: Told) -> Finding:
        raise AssertionError

    check = Check("x", nothing, ("torch", "no_such_package", "nor_this"), num_gpus=2)
    assert why_not(check, "cuda", 2, 1.0) == "needs no_such_package, nor_this, which is not installed here"
    here = Check("x", nothing, ("torch",), num_gpus=2)
    assert why_not(here, "cuda", 1, 1.0) == "GPUs: needs 2, found 1"
    assert why_not(here, "cuda", 2, 0.0) == "no time is left (--limit-s)"
    assert why_not(here, "cuda", 2, 1.0) == ""
    compiled = Check("x", nothing, ("torch",), programs=("no-such-compiler",))
    assert why_not(compiled, "cuda", 1, 1.0) == "needs no-such-compiler, which is not on the PATH"
    assert why_not(compiled, "cpu", 0, 1.0) == ""


def test_without_a_gpu_every_check_is_skipped_and_nothing_has_failed(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checks, "gpus", lambda: [])
    assert run_all("tiny") == 0
    found = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [row["check"] for row in found["checks"]] == [check.name for check in CHECKS]
    assert {row["status"] for row in found["checks"]} == {"skip"}


def test_a_check_that_fails_says_why_and_is_counted(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_checks, "CHECKS", (Check("unheard of", attention, ("torch",)),))
    assert run_all("tiny", device="cpu") == 1, "the process knows no check of this name"
    [row] = json.loads(capsys.readouterr().out.splitlines()[-1])["checks"]
    assert row["status"] == "fail"
    assert row["text"].startswith("ValueError")


def test_the_first_error_is_the_reason() -> None:
    errors = "Traceback\n  File x\ntorch.OutOfMemoryError: CUDA out of memory\nmore\nRuntimeError: engine died\n"
    assert reason_of(errors) == "torch.OutOfMemoryError: CUDA out of memory"
    assert reason_of("killed\n\n") == "killed"
    assert reason_of("") == ""


def test_frozen_weights_move_and_trained_ones_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    module = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 2))
    module[0].requires_grad_(False)
    divided: Any = module[0].bias
    divided.ds_tensor = torch.arange(2.0)  # with ZeRO-3 a rank has a part of it
    moved: list[tuple[int, ...]] = []

    def to(tensor: torch.Tensor, device: torch.device, non_blocking: bool) -> torch.Tensor:
        assert device.type == "cuda"
        moved.append(tuple(tensor.shape))
        return tensor + 100

    monkeypatch.setattr(torch.Tensor, "to", to)
    before = [each.detach().clone() for each in module.parameters()]
    move_frozen(module, torch.device("cuda"))
    assert moved == [(3, 2), (2,)]
    assert divided.ds_tensor.tolist() == [100.0, 101.0]
    changed = [not torch.equal(one, other) for one, other in zip(before, module.parameters(), strict=True)]
    assert changed == [True, False, False, False]


class Sleeper:
    """A learner of 26 GiB, as the sleep check sees it: what it has put on the GPU stays there until it sleeps, also
    when nobody refers to it. `loses`: what a sleep does to its weights."""

    on_gpu = 0.0
    most = 0.0

    def __init__(self, loses: float) -> None:
        self._loses = loses
        self._loss = 8.0
        Sleeper.take(26.0)

    @staticmethod
    def take(gib: float) -> None:
        Sleeper.on_gpu += gib
        Sleeper.most = max(Sleeper.most, Sleeper.on_gpu)

    def begin_stage(self, spec: StageSpec) -> None: ...

    def step(self, batch: Any) -> Any:
        self._loss -= 1
        return SimpleNamespace(loss=self._loss)

    def sleep(self) -> None:
        Sleeper.take(-25.0)
        self._loss += self._loses

    def wake(self) -> None:
        Sleeper.take(25.0)


@pytest.mark.parametrize("loses", [0.0, 0.5])
def test_the_sleep_check_measures_one_learner_and_never_needs_room_for_two(
    loses: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Sleeper, "on_gpu", 1.0)
    monkeypatch.setattr(Sleeper, "most", 0.0)
    monkeypatch.setattr(learner_checks, "_rank", lambda *_, **__: (Sleeper(loses), None))
    monkeypatch.setattr(learner_checks, "_gib_allocated", lambda _: Sleeper.on_gpu)
    found = learner_checks.sleep(Told("tiny", tmp_path))
    assert found.figures == {"freed_gib": 25.0, "held_gib": 26.0}
    assert Sleeper.most < 30
    assert found.passed == (not loses)


@pytest.mark.parametrize("check", [each for each in CHECKS if each.name.startswith("run ")], ids=lambda each: each.name)
def test_every_run_of_a_check_passes_what_is_checked_before_a_run(
    check: Check, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commands: list[list[str]] = []

    def refused(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        commands.append(command)
        return subprocess.CompletedProcess(command, 2, "", "Error\nwhat was wrong")

    monkeypatch.setattr(engine_checks.subprocess, "run", refused)
    found = check.run(Told("qwen2.5-1.5b", tmp_path))
    assert (found.passed, found.text) == (False, "ended with 2: what was wrong")
    [command] = commands
    options = [value for option, value in pairwise(command) if option == "-o"]
    config = load_config("quickstart", options)
    assert config.sync.channel == check.name.split()[-1] or "ranks" in check.name
    assert config.engine.num_gpus
    assert config.learner.num_gpus
    check_files(config)
    assert placement_fault(config, [NodeResources("here", 4, check.num_gpus)]) is None
    if check.num_gpus > 1:
        assert placement_fault(config, [NodeResources("here", 4, 1)])

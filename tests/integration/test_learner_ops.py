"""What one optimiser step asks of its device, however many turns it has."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from learners.forward import to_device
from learners.utilization import moment, seconds_between

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parallel
def test_a_step_reads_few_values_launches_few_operations_and_copies_little() -> None:
    ended = subprocess.run([sys.executable, "-m", "benchmarks.learner_ops"], capture_output=True, text=True, cwd=ROOT)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found = json.loads(ended.stdout.splitlines()[-1])
    assert {(of_step["reads"], of_step["waits"]) for of_step in found["step"].values()} == {(3, 0)}
    of_losses = {(of_loss["calls"], of_loss["reads"]) for of_loss in found["loss"]}
    assert len(of_losses) == 1, "as many for 2 turns as for 200"
    assert max(calls for calls, _ in of_losses) <= 150
    assert {reads for _, reads in of_losses} == {0}
    assert 0 < found["copies"] <= 12


@pytest.mark.parallel
def test_tensors_come_to_a_device_whole_in_a_copy_for_each_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    host = {"ids": torch.arange(6).reshape(2, 3), "more": torch.arange(2), "none": torch.zeros(0), "is": torch.ones(1)}
    assert to_device(host, torch.device("cpu")) == host
    there = to_device(host, torch.device("meta"))
    assert {k: (x.shape, x.dtype) for k, x in there.items()} == {k: (x.shape, x.dtype) for k, x in host.items()}
    copies: list[torch.Tensor] = []

    def copied(tensor: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        copies.append(tensor)
        return tensor

    monkeypatch.setattr(torch.Tensor, "to", copied)
    elsewhere: Any = SimpleNamespace(type="another device")
    found = to_device(host, elsewhere)
    assert found.keys() == host.keys()
    assert all(torch.equal(found[name], host[name]) for name in host)
    assert [tensor.dtype for tensor in copies] == [torch.int64, torch.float32]
    began = moment(torch.device("cpu"))
    assert 0 <= seconds_between(began, moment(torch.device("cpu"))) < 1

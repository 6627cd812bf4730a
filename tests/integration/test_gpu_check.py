"""The checks of a GPU machine that need DeepSpeed and vLLM, tried on CPUs with a tiny model."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cluster.gpu_check.run_checks import run_all


def checked(only: str, capsys: pytest.CaptureFixture[str]) -> dict[str, dict[str, Any]]:
    failed = run_all("tiny", device="cpu", only=only)
    found: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert failed == 0, found
    return {row["check"]: row for row in found["checks"]}


def test_the_learners_checks_pass(capsys: pytest.CaptureFixture[str]) -> None:
    rows = checked("learner ZeRO-3,learner asleep,export", capsys)
    assert {row["status"] for row in rows.values()} == {"pass"}
    assert len(rows) == 3
    assert rows["learner ZeRO-3"]["figures"]["last_loss"] < rows["learner ZeRO-3"]["figures"]["first_loss"]


def test_the_engines_check_passes(capsys: pytest.CaptureFixture[str]) -> None:
    rows = checked("engine", capsys)
    assert rows["engine"]["status"] == "pass"
    assert 0 < rows["engine"]["figures"]["gap_nats"] < 0.05
    assert rows["engine on two GPUs"]["status"] == "skip"

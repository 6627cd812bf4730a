"""benchmarks/seed_runs.py: a benchmark goes on only from a run that has finished."""

import json
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from benchmarks import seed_runs


@pytest.mark.parametrize(("code", "how"), [(0, "finished"), (0, "stopped"), (0, None), (3, "finished")])
def test_a_run_that_was_stopped_or_has_failed_ends_the_benchmark(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, how: str | None
) -> None:
    """A run that is asked to stop ends with exit code 0: a record of it would be one of too few rounds."""
    asked: list[list[str]] = []

    def train(command: Sequence[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(list(command[3:]))
        if how is not None:
            (tmp_path / "ended.json").write_text(json.dumps({"ended": how}))
        return subprocess.CompletedProcess(command, code)

    monkeypatch.setattr(subprocess, "run", train)
    if (code, how) == (0, "finished"):
        seed_runs.train("kuhn", tmp_path, ["seed=1"])
    else:
        with pytest.raises(SystemExit, match="call this again to continue" if code == 0 else "3"):
            seed_runs.train("kuhn", tmp_path, ["seed=1"])
    assert asked == [["train", "kuhn", "--run-dir", str(tmp_path), "--resume", "-o", "seed=1"]]

"""docs/examples/slurm.sh on two nodes (tests/support/two_nodes.py): notice, checkpoint, requeue, resume."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from spag_ray.config.loading import to_yaml
from tests.support.not_here import not_here
from tests.support.runs import records_of, tiny_run
from tests.support.two_nodes import missing, sbatch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "examples" / "slurm.sh"


@pytest.mark.long  # a cluster of two nodes, twice
@pytest.mark.timeout(600)
def test_a_run_that_gets_a_notice_is_queued_again_and_finishes(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    if lacking := missing():
        not_here(lacking)
    config = tiny_run(
        tiny_model,
        words,
        imitation={"enabled": False},
        engine={"kind": "transformers"},
        objective={"learn_from": "both"},
        self_play={"rounds": 8, "games_per_round": 16},
        evaluation={"games": 0},
        cluster={"strategy": "spread"},
    )
    file, folder = tmp_path / "tiny.yaml", tmp_path / "run"
    file.write_text(to_yaml(config))
    environment: dict[str, Any] = {"PYTHONPATH": str(ROOT)}

    with sbatch(SCRIPT, [str(file), str(folder)], tmp_path / "first", environment) as first:
        deadline = time.monotonic() + 200
        while not (folder / "metrics.jsonl").exists() or len(records_of(folder, "sync")) < 2:
            assert first.poll() is None, first.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.2)
        (tmp_path / "first" / "notice").touch()
        said, _ = first.communicate(timeout=120)
    assert first.returncode == 0, said
    assert "On worker node. Connecting to Ray cluster at" in said
    assert "asked to stop: at most 30 s" in said, said
    assert (tmp_path / "first" / "scontrol").read_text() == "requeue 7\n"
    assert json.loads((folder / "ended.json").read_text())["ended"] == "stopped"
    assert records_of(folder, "checkpoint"), "a checkpoint was saved"

    with sbatch(SCRIPT, [str(file), str(folder)], tmp_path / "second", environment) as second:
        said, _ = second.communicate(timeout=200)
    assert second.returncode == 0, said
    assert not (tmp_path / "second" / "scontrol").exists()
    assert json.loads((folder / "ended.json").read_text())["ended"] == "finished"
    assert len(records_of(folder, "resumed")) == 1

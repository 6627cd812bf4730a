"""docs/examples/slurm.sh on two nodes (tests/support/two_nodes.py): notice, checkpoint, requeue, resume."""

import json
import time
from pathlib import Path

import pytest

from spag_ray.config.loading import to_yaml
from tests.support.not_here import not_here
from tests.support.runs import records_of, tiny_run
from tests.support.two_nodes import missing, sbatch

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "docs" / "examples" / "slurm.sh"


@pytest.mark.long  # a cluster of two nodes, twice
@pytest.mark.timeout(900)
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
    environment = {"PYTHONPATH": str(ROOT)}
    first_job, second_job = tmp_path / "first", tmp_path / "second"

    with sbatch(SCRIPT, [str(file), str(folder)], first_job, environment) as first:
        deadline = time.monotonic() + 300
        while not (folder / "metrics.jsonl").exists() or len(records_of(folder, "sync")) < 2:
            assert first.poll() is None, (first_job / "said").read_text()
            assert time.monotonic() < deadline, (first_job / "said").read_text()
            time.sleep(0.2)
        (first_job / "notice").touch()
        code = first.wait(120)
    said = (first_job / "said").read_text()
    assert code == 0, said
    assert "On worker node. Connecting to Ray cluster at" in said
    assert "asked to stop: saves a checkpoint if that fits into 30 s" in said, said
    assert (first_job / "asked").read_text() == "requeue 7\n"
    assert json.loads((folder / "ended.json").read_text())["ended"] == "stopped"
    assert records_of(folder, "checkpoint"), "a checkpoint was saved"

    with sbatch(SCRIPT, [str(file), str(folder)], second_job, environment) as second:
        code = second.wait(300)
    assert code == 0, (second_job / "said").read_text()
    assert not (second_job / "asked").exists()
    assert json.loads((folder / "ended.json").read_text())["ended"] == "finished"
    assert len(records_of(folder, "resumed")) == 1

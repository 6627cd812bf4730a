"""`spag-ray train --seeds` for real: two runs of a tiny model, each with a Ray of its own, and the table over them."""

import subprocess
import sys
from pathlib import Path

import pytest

from spag_ray.config.loading import load_config, to_yaml
from tests.support.runs import PENALISED, steps_of, tiny_run


@pytest.mark.parallel
@pytest.mark.timeout(600)
def test_two_seeds_train_in_turn_and_end_with_their_table(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers", "num_cpus": 0.5},
        imitation={"enabled": False},
        objective={"learn_from": "both"},
        game={"payoffs": PENALISED},
        self_play={"rounds": 1, "games_per_round": 16},
        evaluation={"games": 0},
        cluster={"num_cpus": 2, "object_store_gib": 0.3},
    )
    (tmp_path / "own.yaml").write_text(to_yaml(config))
    command = [sys.executable, "-m", "spag_ray", "train", str(tmp_path / "own.yaml"), "--seeds", "4-5"]
    command += ["--run-dir", str(tmp_path / "runs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=560, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    models = []
    for seed in (4, 5):
        folder = tmp_path / "runs" / f"seed-{seed}"
        assert load_config(str(folder / "config.yaml")).seed == seed
        assert {line["stage"] for line in steps_of(folder)} == {"spag-1"}
        models.append((folder / "models" / "spag-1" / "model.safetensors").read_bytes())
    assert models[0] != models[1], "another seed is another run"
    (head,) = [line.split() for line in done.stdout.splitlines() if "mean [95 %]" in line]
    assert head[:2] == ["seed-4", "seed-5"]
    (games,) = [line.split() for line in done.stdout.splitlines() if line.startswith(" games of self-play")]
    assert games[3:6] == ["16", "16", "16"]

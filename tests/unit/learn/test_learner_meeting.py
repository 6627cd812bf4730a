"""How the ranks of a learner group meet, and how long they wait for each other."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

JOIN = """
import sys
import torch
from torch.distributed import distributed_c10d
from learners.engine import TrainingEngine, World
from spag_ray.config.parts import LearnerConfig

config = LearnerConfig(dtype="float32", timeout_s=7200, zero_stage=int(sys.argv[1]))
TrainingEngine(torch.nn.Linear(2, 2), config, World(master="127.0.0.1:0"))
groups = distributed_c10d._world.pg_map
waits = [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]
stores = [store.underlying_store.timeout.total_seconds() for _, store in groups.values() if store is not None]
print("groups", len(waits), "wait", *{*waits, stores[0]})
"""


def test_the_timeout_of_learners_is_that_of_every_group_of_theirs() -> None:
    """DeepSpeed makes groups of its own, and torch gives each a default of 30 minutes, and the store one of 5."""
    for stage in (2, 3):
        said = in_a_process(JOIN, str(stage))
        assert "wait 7200.0\n" in said
        assert int(said.split("groups ")[1].split()[0]) > 1, "DeepSpeed's own are among them"


def in_a_process(program: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout

"""A stage begins with an optimiser that has counted no steps, whichever optimiser it is."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.listening import free_ports
from tests.support.not_here import not_here

pytestmark = pytest.mark.parallel

SCRIPT = """
import json, os, sys
import torch
import learners.engine
from learners.deepspeed_config import deepspeed_config
from spag_ray.config.parts import LearnerConfig

options, on_gpu, port = sys.argv[1:]
# What DeepSpeed is told where there is a GPU, tried on a machine that may have none.
learners.engine.deepspeed_config = lambda config, on_gpu: deepspeed_config(config, bool(int(sys.argv[2])))
model = torch.nn.Linear(4, 1, bias=False)
config = LearnerConfig(dtype="float32", **json.loads(options))
engine = learners.engine.TrainingEngine(model, config, learners.engine.World(master=f"127.0.0.1:{port}"))

def steps(count):
    sums = []
    for _ in range(count + 1):
        total = engine.module(torch.ones(1, 4)).sum()
        engine.backward(total, last=True)
        engine.step(1e-3)
        sums.append(total.item())
    return [(before - after) / 4 for before, after in zip(sums, sums[1:])]

first = steps(300)
engine.forget_moments()
later = steps(20)
print("RESULT " + json.dumps([type(engine._optimizer.optimizer).__name__, first[:20], later]))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("optimizer", "on_gpu", "options"),
    [
        ("AdamW", 0, {"zero_stage": 1}),
        # DeepSpeed compiles it on first use: a minute or two.
        pytest.param("DeepSpeedCPUAdam", 1, {"deepspeed": "zero2_offload"}, marks=pytest.mark.long),
        pytest.param("DeepSpeedCPUAdam", 1, {"deepspeed": "zero3_offload"}, marks=pytest.mark.long),
    ],
)
def test_the_first_steps_of_a_later_stage_are_as_large_as_those_of_the_first(
    optimizer: str, on_gpu: int, options: dict[str, Any], request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    if optimizer == "DeepSpeedCPUAdam" and shutil.which("g++") is None:
        not_here("no `g++` on the PATH, with which DeepSpeed compiles its optimiser")
    built: Path = request.config.cache.mkdir("torch_extensions")
    (port,) = free_ports(1)
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(options), str(on_gpu), str(port)],
        env={**os.environ, "TORCH_EXTENSIONS_DIR": str(built), "PATH": str(without_ninja(tmp_path / "bin"))},
        capture_output=True,
        text=True,
        timeout=380,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    name, first, later = json.loads(line.removeprefix("RESULT "))
    assert name == optimizer
    assert first == pytest.approx([1e-3] * 20, rel=1e-2), "of one gradient Adam's steps are as large as the rate"
    assert later == pytest.approx(first, rel=1e-2)


def without_ninja(folder: Path) -> Path:
    """The machine's programs but for ninja, which DeepSpeed finds beside the Python that runs it."""
    folder.mkdir()
    for system in os.environ["PATH"].split(os.pathsep):
        for program in Path(system).iterdir() if Path(system).is_dir() else []:
            link = folder / program.name
            if program.name != "ninja" and not link.is_symlink():
                link.symlink_to(program)
    return folder

"""One step of the optimiser: which one it is, and how often it waits for a number of a device."""

from __future__ import annotations

import json
import socket
import subprocess
import sys

import pytest

pytestmark = pytest.mark.parallel

SCRIPT = """
import json, os, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from learners.engine import TrainingEngine, World
from spag_ray.config.parts import LearnerConfig

config = LearnerConfig(**json.loads(sys.argv[1]))
layers = [torch.nn.Linear(4, 4) for _ in range(20)]
model = torch.nn.Sequential(*layers).to(getattr(torch, config.dtype))
engine = TrainingEngine(model, config, World(master=f"127.0.0.1:{sys.argv[2]}"))

class Reads(TorchDispatchMode):
    count = 0
    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.count += operation is torch.ops.aten._local_scalar_dense.default
        return operation(*arguments, **(options or {}))

for _ in range(2):
    total = engine.module(torch.ones(1, 4, dtype=getattr(torch, config.dtype))).sum()
    engine.backward(total, last=True)
    with Reads() as reads:
        assert engine.step(1e-3) is not None
inner = getattr(engine._optimizer, "optimizer", engine._optimizer)
print("RESULT " + json.dumps([type(inner).__module__, inner.defaults["fused"], reads.count]))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.parametrize(
    "options",
    [{"dtype": "float32", "zero_stage": 0}, {"zero_stage": 1}, {"zero_stage": 2}, {"zero_stage": 3}],
    ids=["zero-0", "zero-1", "zero-2", "zero-3"],
)
def test_a_step_is_torchs_fused_adam_and_reads_a_few_numbers_not_one_of_each_parameter(
    options: dict[str, object],
) -> None:
    """DeepSpeed's own fused Adam would have to be compiled with nvcc. An unfused Adam reads every step count."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-c", SCRIPT, json.dumps(options), str(port)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    module, fused, num_reads = json.loads(line.removeprefix("RESULT "))
    assert (module, fused) == ("torch.optim.adamw", True)
    assert num_reads <= 4, "the norm and whether it is finite; there are 40 parameters"

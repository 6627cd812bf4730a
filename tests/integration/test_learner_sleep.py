"""What DeepSpeed's own optimisers offer a learner that is to leave its GPU: asked of each, built on CPU."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from learners.deepspeed_config import deepspeed_config, sleep_fault
from spag_ray.config.parts import LearnerConfig
from spag_ray.errors import ConfigError

pytestmark = pytest.mark.parallel

# Each of them learns, is moved away and back, and learns on: its next weights are those of a twin that stayed.
SCRIPT = """
import json, os, sys
import torch
import learners.engine
from learners.engine import TrainingEngine, World
from spag_ray.config.parts import LearnerConfig
from deepspeed.runtime.zero.offload_config import OffloadStateTypeEnum

options, offload, port = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]
given = learners.engine.deepspeed_config

def settings(config, on_gpu):
    found = given(config, on_gpu)
    for key in filter(None, offload.split(",")):
        found["zero_optimization"][key] = {"device": "cpu"}
        found["zero_force_ds_cpu_optimizer"] = False
    return found

learners.engine.deepspeed_config = settings
world = World(master=f"127.0.0.1:{port}")

def make():
    torch.manual_seed(0)
    return TrainingEngine(torch.nn.Linear(4, 2, bias=False), LearnerConfig(**options), world)

def step(engine):
    inputs = torch.ones(1, 4, dtype=torch.bfloat16 if options["dtype"] == "bfloat16" else torch.float32)
    engine.backward(engine.module(inputs).float().square().sum(), last=True)
    engine.step(1e-2)
    with engine.gathered(list(engine.inner_module.parameters())):
        return [float(value) for value in engine.inner_module.weight.flatten()]

moved, stayed = make(), make()
step(moved), step(stayed)
fault = None
try:
    moved._engine.offload_states(include=set(OffloadStateTypeEnum), pin_memory=False)
    moved._engine.reload_states()
except (AttributeError, AssertionError) as error:
    fault = f"{type(error).__name__}: {error}"
same = fault is not None or step(moved) == step(stayed)
print("RESULT " + json.dumps([type(moved._optimizer).__name__, fault, same]))
sys.stdout.flush()
os._exit(0)
"""


@pytest.mark.timeout(120)
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
@pytest.mark.parametrize(
    ("stage", "offload"),
    [
        (0, ""),
        (1, ""),
        (1, "offload_optimizer"),
        (2, ""),
        (2, "offload_optimizer"),
        (3, ""),
        (3, "offload_optimizer"),
        (3, "offload_optimizer,offload_param"),
    ],
)
def test_a_learner_that_is_said_to_sleep_can_and_one_that_is_refused_cannot(
    stage: int, offload: str, dtype: str
) -> None:
    config = LearnerConfig.model_validate({"zero_stage": stage, "dtype": dtype})
    if (stage, dtype) == (0, "bfloat16"):
        with pytest.raises(ConfigError, match="would add up gradients in bfloat16"):
            deepspeed_config(config)
        return
    settings = deepspeed_config(config)
    for key in filter(None, offload.split(",")):
        settings["zero_optimization"][key] = {"device": "cpu"}
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = json.dumps({"zero_stage": stage, "dtype": dtype})
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, options, offload, str(port)], capture_output=True, text=True, env=os.environ
    )
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    name, fault, same = json.loads(line.removeprefix("RESULT "))
    assert (fault is None) == (sleep_fault(settings) is None), f"{name}: {fault}; we say: {sleep_fault(settings)}"
    assert same, f"{name}: its next step is another after it was moved away and back"

"""A learner that has been taken off its device and brought back takes the steps of one that stayed: each of DeepSpeed's
optimisers, built on a CPU, whose memory stands for a GPU's."""

import json
import subprocess
import sys

import pytest

from learners.deepspeed_config import deepspeed_config
from spag_ray.config.parts import LearnerConfig
from spag_ray.errors import ConfigError
from tests.support.listening import free_ports

pytestmark = pytest.mark.parallel

SCRIPT = """
import json, os, sys
import torch
import learners.engine
from learners.engine import TrainingEngine, World
from learners.sleeping import DeviceMemory, tensors_of, weights_of
from spag_ray.config.parts import LearnerConfig

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
    frozen = torch.nn.Linear(4, 4).requires_grad_(False)  # as adapters' weights are, or embeddings
    module = torch.nn.Sequential(frozen, torch.nn.Linear(4, 2, bias=False))
    engine = TrainingEngine(module, LearnerConfig(**options), world)
    engine._memory = DeviceMemory("cpu")
    return engine

def step(engine):
    inputs = torch.ones(1, 4, dtype=torch.bfloat16 if options["dtype"] == "bfloat16" else torch.float32)
    for last in (False, True):
        engine.backward(engine.module(inputs).float().square().sum(), last=last)
    norm = float(engine.step(1e-2).detach())
    with engine.gathered(list(engine.inner_module.parameters())):
        return [norm, *(float(value) for each in engine.inner_module.parameters() for value in each.flatten())]

def num_bytes(tensors):
    storages = [each.untyped_storage() for each in tensors if each.device.type == "cpu"]
    return sum({each._cdata: each.nbytes() for each in storages}.values())

def held_by(engine):
    return num_bytes(tensors_of(engine.inner_module, engine._optimizer))

moved, stayed = make(), make()
assert step(moved) == step(stayed)
held, weights = held_by(moved), num_bytes(weights_of(moved.inner_module))
left = []
for keep_weights in (True, False, False):
    moved.offload(keep_weights)
    if keep_weights:
        assert all(each.isfinite().all() for each in weights_of(moved.inner_module)), "they are to be sent"
    left.append(held_by(moved))
    if len(left) == 2:
        moved.offload()  # asleep already
    moved.reload()
    assert held_by(moved) == held
    assert step(moved) == step(stayed)
print("RESULT " + json.dumps([type(moved._optimizer).__name__, held, weights, left]))
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
def test_a_learner_that_slept_takes_the_steps_of_one_that_did_not(stage: int, offload: str, dtype: str) -> None:
    config = LearnerConfig.model_validate({"zero_stage": stage, "dtype": dtype})
    if (stage, dtype) == (0, "bfloat16"):
        with pytest.raises(ConfigError, match="would add up gradients in bfloat16"):
            deepspeed_config(config)
        return
    (port,) = free_ports(1)
    options = json.dumps({"zero_stage": stage, "dtype": dtype})
    done = subprocess.run([sys.executable, "-c", SCRIPT, options, offload, str(port)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    name, held, weights, (asleep_with_weights, asleep, again) = json.loads(line.removeprefix("RESULT "))
    assert held > weights, name
    assert asleep_with_weights == weights, f"{name}: the optimiser's tensors stayed"
    assert asleep == again == 0, f"{name}: {asleep} bytes stayed"

"""One step of the optimiser: which one it is, and how often it waits for a number of a device."""

import json
import subprocess
import sys
from typing import Any

import pytest

from tests.support.listening import free_ports

pytestmark = pytest.mark.parallel


def result_of(script: str, *arguments: str) -> Any:
    """What a script says in a process of its own, which is given a port for its ranks to meet."""
    (port,) = free_ports(1)
    command = [sys.executable, "-c", script, str(port), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    assert done.returncode == 0, done.stderr[-3000:]
    line = next(line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


SCRIPT = """
import json, os, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from learners.engine import TrainingEngine, World
from spag_ray.config.parts import LearnerConfig

config = LearnerConfig(**json.loads(sys.argv[2]))
layers = [torch.nn.Linear(4, 4) for _ in range(20)]
model = torch.nn.Sequential(*layers).to(getattr(torch, config.dtype))
engine = TrainingEngine(model, config, World(master=f"127.0.0.1:{sys.argv[1]}"))

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
def test_a_step_is_torchs_fused_adam_and_reads_few_numbers_not_one_per_parameter(options: dict[str, object]) -> None:
    """DeepSpeed's own fused Adam would have to be compiled with nvcc. An unfused Adam reads every step count."""
    module, fused, num_reads = result_of(SCRIPT, json.dumps(options))
    assert (module, fused) == ("torch.optim.adamw", True)
    assert num_reads <= 4, "the norm and whether it is finite; there are 40 parameters"


FLAT = """
import json, os, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode
import learners.engine
from learners.engine import TrainingEngine, World
from spag_ray.config.parts import LearnerConfig

port, flatten, settings = sys.argv[1], learners.engine.flatten_gradients, learners.engine.deepspeed_config

class Some(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = torch.nn.ModuleList(torch.nn.Linear(5, 5) for _ in range(20))
        self.unused = torch.nn.Linear(3, 3)

    def forward(self, inputs):
        for layer in self.layers:
            inputs = layer(inputs).tanh()
        return inputs

class Calls(TorchDispatchMode):
    count = 0
    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.count += 1
        return operation(*arguments, **(options or {}))

def trained(flattens, at_once=False):
    def with_bf16(config, on_gpu):
        found = settings(config, on_gpu)
        return {**found, "bf16": {"enabled": True, "immediate_grad_update": at_once}}

    learners.engine.flatten_gradients = flatten if flattens else lambda optimizer: None
    learners.engine.deepspeed_config = with_bf16
    torch.manual_seed(0)
    config = LearnerConfig(dtype="bfloat16", max_grad_norm=0.5)
    engine = TrainingEngine(Some().bfloat16(), config, World(master=f"127.0.0.1:{port}"))
    found = []
    for scale in (1.0, 1e-3, 1e3, float("nan"), 1.0):  # clipped or not; a gradient that is not finite is skipped
        for index, last in enumerate((False, False, True)):
            inputs = torch.linspace(-1, index + 1, 20).reshape(4, 5).bfloat16()
            engine.backward(scale * engine.module(inputs).float().square().sum(), last=last)
        summed = torch.cat(engine._optimizer.fp32_groups_gradients_flat)
        rounded.append(torch.equal(summed, summed.bfloat16().float()))
        with Calls() as calls:
            norm = engine.step(1e-2)
        masters = torch.cat([each.detach().clone() for each in engine._optimizer.fp32_groups_flat_partition])
        found.append((None if norm is None else float(norm), masters, calls.count))
    return found

same, norms, calls, rounded = [], [], [], []
at_once = [norm for norm, _, _ in trained(True, at_once=True)]  # hooks add gradients then, not the optimiser
for one, other in zip(trained(True), trained(False)):
    same.append(torch.allclose(one[1], other[1], rtol=1e-5, atol=1e-8))
    norms.append((one[0], other[0]))
    calls.append((one[2], other[2]))
print("RESULT " + json.dumps([same, norms, calls, at_once, any(rounded[:3])]))
sys.stdout.flush()
os._exit(0)
"""


def test_flat_gradients_give_deepspeeds_weights_with_one_operation_for_all_parameters() -> None:
    same, norms, calls, at_once, is_rounded = result_of(FLAT)
    assert same == [True] * 5
    assert not is_rounded, "the sums of three backward passes are float32 until the step"
    assert norms[3] == [None, None]
    assert all(flat == pytest.approx(of_each, rel=1e-5) for flat, of_each in [*norms[:3], norms[4]])
    assert [each for each in at_once if each] == pytest.approx([each for _, each in norms if each], rel=1e-2)
    assert all(flat < 40 < 100 < of_each for flat, of_each in [*calls[1:3], calls[4]]), calls


FREED = """
import json, os, sys
import torch
from torch.utils._python_dispatch import TorchDispatchMode
import learners.engine
from learners.engine import TrainingEngine, World
from spag_ray.config.parts import LearnerConfig

port, settings = sys.argv[1], learners.engine.deepspeed_config
ours = {name: getattr(learners.engine, name) for name in ("free_added_gradients", "take_norm_at_once")}

class Calls(TorchDispatchMode):
    count = 0
    def __torch_dispatch__(self, operation, types, arguments=(), options=None):
        self.count += 1
        return operation(*arguments, **(options or {}))

def trained(is_ours):
    def with_small_buckets(config, on_gpu):
        found = settings(config, on_gpu)
        return {**found, "zero_optimization": {"stage": 2, "reduce_bucket_size": 20}}  # a weight has 25 numbers

    for name, own in ours.items():
        setattr(learners.engine, name, own if is_ours else lambda optimizer: None)
    learners.engine.deepspeed_config = with_small_buckets
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Linear(5, 5) for _ in range(9))).bfloat16()
    engine = TrainingEngine(model, LearnerConfig(zero_stage=2, dtype="bfloat16"), World(master=f"127.0.0.1:{port}"))
    optimizer, left, norms = engine._optimizer, [], []
    clear = optimizer._clear_param_grad_only

    def at_the_end_of_a_pass():
        left.append(sum(each.grad is not None and each.grad.numel() == 25 for each in model.parameters()))
        clear()

    optimizer._clear_param_grad_only = at_the_end_of_a_pass
    for _ in range(2):
        for last in (False, True):
            engine.backward(engine.module(torch.ones(2, 5).bfloat16()).float().square().sum(), last=last)
        with Calls() as calls:
            norms.append(float(engine.step(1e-2)))
    masters = torch.cat([each.detach().clone() for each in optimizer.single_partition_of_fp32_groups])
    engine.backward(engine.module(torch.ones(2, 5).bfloat16()).float().sum() * float("nan"), last=True)
    assert engine.step(1e-2) is None
    return left[:4], norms, calls.count, masters

mine, theirs = trained(True), trained(False)
is_same = torch.allclose(mine[3], theirs[3], rtol=1e-5, atol=1e-8)
print("RESULT " + json.dumps([mine[:3], theirs[:3], is_same]))
sys.stdout.flush()
os._exit(0)
"""


def test_zero_2_leaves_no_gradient_takes_one_norm_and_has_the_weights_of_deepspeed() -> None:
    (left, norms, calls), (left_by_deepspeed, its_norms, its_calls), is_same = result_of(FREED)
    assert left == [0] * 4
    assert left_by_deepspeed == [9] * 4, "those that are larger than a bucket"
    assert norms == pytest.approx(its_norms, rel=1e-5)
    assert is_same
    assert calls < its_calls - 2 * 18, "the norm is of 18 parameters"

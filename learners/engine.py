"""The DeepSpeed engine behind one small class: forward, backward in any number of micro-steps, one optimiser step.

    engine = TrainingEngine(model, config, world)
    for index, tree in enumerate(trees):
        loss = ...(token_logprobs(engine.module, tree))
        engine.backward(loss, last=index == len(trees) - 1)
    grad_norm = engine.step(learning_rate)

DeepSpeed is told one micro-batch per step; where a global batch is cut into several, `backward` marks the last.
Gradients are summed over ranks, not averaged: a loss already carries the numbers of the global batch.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import deepspeed
import torch
from torch import Tensor, nn

from spag_ray.config import LearnerConfig


@dataclass(frozen=True)
class World:
    """This rank's place in its learner group; `master` is host:port of rank 0."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    master: str = "127.0.0.1:29500"


def deepspeed_config(config: LearnerConfig) -> dict[str, Any]:
    """The DeepSpeed JSON of a run's learner section."""
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.max_grad_norm,
        "bf16": {"enabled": config.dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {
            "stage": config.zero_stage,
            # The default of 5e8 elements would be gigabytes of buffers beside a small model.
            "reduce_bucket_size": 20_000_000,
            "allgather_bucket_size": 20_000_000,
        },
        # The learning rate is set before every step by learners/learner.py.
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": 0.0,
                "betas": [0.9, 0.999],
                "eps": 1e-8,
                "weight_decay": config.weight_decay,
                "torch_adam": True,
                "fused": True,
            },
        },
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": False,
        "steps_per_print": 2**31 - 1,
    }


class TrainingEngine:
    """One rank. Making it joins the process group, so every rank of the group has to make it."""

    def __init__(self, model: nn.Module, config: LearnerConfig, world: World) -> None:
        self.world = world
        _join(world)
        self._engine, self._optimizer, _, _ = deepspeed.initialize(
            model=model, model_parameters=list(model.parameters()), config=deepspeed_config(config)
        )
        self._zero3 = config.zero_stage == 3

    @property
    def module(self) -> nn.Module:
        """What computes logits: the engine itself, so that its hooks run."""
        return self._engine

    @property
    def device(self) -> torch.device:
        return self._engine.device

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add this micro-step's gradient; `last` closes the global batch. Every rank has the same number of them."""
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over ranks; the loss is this rank's share of a sum.
        self._engine.backward(loss * self.world.size, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> float:
        """Clip, update, clear. Returns the gradient's norm over all ranks, before clipping."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        self._engine.step()
        norm = self._engine.get_global_grad_norm()
        return float(norm) if norm is not None else float("nan")

    def forget_moments(self) -> None:
        """Adam's moments and step counts back to zero: each stage is a training run of its own."""
        inner = getattr(self._optimizer, "optimizer", self._optimizer)
        for state in inner.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.zero_()

    def named_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        yield from self._engine.module.named_parameters()

    @contextlib.contextmanager
    def gathered(self, parameters: list[nn.Parameter]) -> Iterator[None]:
        """The parameters whole on this rank meanwhile (ZeRO-3 gathers them: every rank has to ask for the same)."""
        if not self._zero3:
            yield
            return
        with deepspeed.zero.GatheredParameters(parameters):
            yield


def sum_over_ranks(values: list[float]) -> list[float]:
    """Each value summed over the learner group."""
    tensor = torch.tensor(values, dtype=torch.float64)
    if torch.distributed.get_world_size() > 1:
        torch.distributed.all_reduce(tensor)
    return tensor.tolist()


def max_over_ranks(value: int) -> int:
    tensor = torch.tensor(value)
    if torch.distributed.get_world_size() > 1:
        torch.distributed.all_reduce(tensor, op=torch.distributed.ReduceOp.MAX)
    return int(tensor)


def _join(world: World) -> None:
    host, port = world.master.rsplit(":", 1)
    os.environ.update(
        MASTER_ADDR=host,
        MASTER_PORT=port,
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(world.local_rank),
    )
    if not torch.distributed.is_initialized():
        # Both on a GPU machine: gradients travel over NCCL, the few numbers of a report over gloo.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        torch.distributed.init_process_group(backend, rank=world.rank, world_size=world.size)
    # Its shared-memory all-reduce would be compiled on first use; gloo's serves, and needs no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    main_backend = "nccl" if torch.cuda.is_available() else "gloo"
    deepspeed.init_distributed(dist_backend=main_backend, dist_init_required=False, verbose=False)

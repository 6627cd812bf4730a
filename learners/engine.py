"""The DeepSpeed engine behind one small class: forward, backward in any number of micro-steps, one optimiser step.

DeepSpeed is configured for one micro-batch per step; if a global batch has several, `backward` marks the last.
Gradients are summed over ranks, not averaged, because a loss is already divided by the counts of the global batch.
"""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import socket
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import deepspeed
import numpy as np
import torch
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.config import DeepSpeedConfigError
from deepspeed.runtime.zero.partition_parameters import DeepSpeedTensorOverride, PartitionedParamStatus
from deepspeed.runtime.zero.utils import ZeRORuntimeException
from numpy.typing import NDArray
from torch import Tensor, nn
from transformers.modeling_layers import GradientCheckpointingLayer

from learners.deepspeed_config import deepspeed_config
from learners.flat_gradients import flatten_gradients, free_added_gradients, take_norm_at_once
from learners.sleeping import DeviceMemory, tensors_of, weights_of
from spag_ray.config.parts import LearnerConfig
from spag_ray.errors import LearnerError, RunFolderError
from spag_ray.host.libraries import plain_path

_TAG = "state"


@dataclass(frozen=True)
class World:
    """This rank's place in its learner group; `master` is host:port of rank 0. `listening`: rank 0's socket that is
    bound there, as a file descriptor, which the group takes over (None: it binds one; a group of one may use port 0).
    """

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    master: str = "127.0.0.1:29500"
    listening: int | None = None


class TrainingEngine:
    """One rank. The constructor joins the process group, so every rank of the group has to call it."""

    def __init__(self, model: nn.Module, config: LearnerConfig, world: World) -> None:
        self.world = world
        settings = deepspeed_config(config, on_gpu=torch.cuda.is_available())
        self._zero_stage = settings["zero_optimization"]["stage"]
        self._memory = DeviceMemory("cuda")
        _join(world, config.timeout_s)
        _find_ninja()
        if config.compile == "layers":
            compile_layers(model)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        try:
            self._engine, self._optimizer, _, _ = deepspeed.initialize(
                model=model, model_parameters=trained, config=settings
            )
        except (ValueError, TypeError, AssertionError, DeepSpeedConfigError) as error:
            where = config.deepspeed or "the learner section"
            raise LearnerError(f"DeepSpeed refuses its configuration (from {where}): {error}") from error
        self.device: torch.device = self._engine.device
        self.module: nn.Module = self._engine  # it computes logits: the engine itself, so that its hooks run
        self.inner_module: nn.Module = self._engine.module
        self.is_partitioned = self._zero_stage == 3  # whether each parameter is divided over the ranks
        if isinstance(self._optimizer, BF16_Optimizer) and not self._optimizer.immediate_grad_update:
            flatten_gradients(self._optimizer)
        # DeepSpeed checks for non-finite gradients only with bfloat16 and with ZeRO-3; float32 may have them too.
        if hasattr(self._optimizer, "check_grad_overflow"):
            self._optimizer.check_grad_overflow = True
        if self._zero_stage == 2:
            free_added_gradients(self._optimizer)
            take_norm_at_once(self._optimizer)
        if self._zero_stage in (1, 2):
            # Before that check of the norm, DeepSpeed would wait for the device to say if any gradient is not finite.
            self._optimizer.check_overflow = lambda *_, **__: None

    def backward(self, loss: Tensor, last: bool) -> None:
        """Add this micro-step's gradient; `last` ends the global batch. All ranks make the same number of calls."""
        self._engine.set_gradient_accumulation_boundary(last)
        # DeepSpeed averages over ranks; the loss is this rank's share of a sum.
        self._engine.backward(loss * self.world.size, scale_wrt_gas=False)

    def step(self, learning_rate: float) -> Tensor | None:
        """Clip, update, clear. Returns the gradient's norm over all ranks, before clipping, 0-d and not yet read; None
        when the gradient is not finite and nothing was updated."""
        for group in self._optimizer.param_groups:
            group["lr"] = learning_rate
        if self._zero_stage == 0:  # here DeepSpeed neither checks nor reports the norm
            gradients = [parameter.grad for parameter in self.inner_module.parameters() if parameter.grad is not None]
            norm = torch.nn.utils.get_total_norm(gradients)
            if not bool(torch.isfinite(norm)):
                self._engine.zero_grad()
                return None
            self._engine.step()
            return norm
        self._engine.step()
        if not self._optimizer.overflow:
            return torch.as_tensor(self._engine.get_global_grad_norm())
        # Offloaded with ZeRO-1 or 2, DeepSpeed would add the next step's gradients to these. Without offloading, ZeRO-1
        # in bfloat16 has an optimiser of another class, which clears its own.
        if self._zero_stage in (1, 2) and hasattr(self._optimizer, "averaged_gradients"):
            for group in self._optimizer.averaged_gradients:
                self._optimizer.averaged_gradients[group] = None
        return None

    def forget_moments(self) -> None:
        """Reset Adam's moments and step counts to zero: each stage is a training run of its own.

        torch counts steps in a tensor per parameter, DeepSpeed's CPU Adam in an int, its fused one in a group too.
        """
        inner = getattr(self._optimizer, "optimizer", self._optimizer)
        for state in inner.state.values():
            for name, value in state.items():
                if isinstance(value, Tensor):
                    value.zero_()
                elif isinstance(value, int | float):
                    state[name] = 0
        for group in inner.param_groups:
            if "step" in group:
                group["step"] = 0

    def offload(self, keep_weights: bool = False) -> None:
        """Take gradients, optimiser states and (without `keep_weights`) parameters off the GPU; `reload` before the
        next call of anything."""
        module = self.inner_module
        self._memory.put_away(tensors_of(module, self._optimizer), weights_of(module) if keep_weights else ())
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def reload(self) -> None:
        self._memory.bring_back()

    def save(self, folder: str, extra: dict[str, Any]) -> None:
        """Write DeepSpeed's checkpoint with `extra`. Every rank calls it and writes its part.

        Raises RunFolderError when it cannot be written to the disk.
        """
        try:
            self._engine.save_checkpoint(folder, tag=_TAG, client_state=extra, save_latest=False)
        except (OSError, RuntimeError) as error:  # torch raises its own error when a disk is full
            raise RunFolderError(f"rank {self.world.rank} could not write its part: {error}") from error

    def load(self, folder: str) -> dict[str, Any]:
        """The inverse of `save`; returns `extra`. The files are pickles, so only load files of the run's own folder.

        Raises LearnerError when they are missing or damaged, or written by a group of another shape.
        """
        try:
            with plain_path(folder) as plain:
                path, extra = self._engine.load_checkpoint(plain, tag=_TAG)
        except MemoryError:
            raise  # nothing is damaged
        except Exception as error:  # the bytes of a damaged pickle may raise anything
            if isinstance(error, ZeRORuntimeException):  # nothing is damaged, but the ranks may be others
                self.check_ranks(folder, len(list(Path(folder, _TAG).glob("*_optim_states.pt"))))
            raise LearnerError(f"{folder}: DeepSpeed cannot resume from this checkpoint: {error}") from error
        if path is None:
            raise LearnerError(f"{folder}: no DeepSpeed checkpoint in it")
        return extra

    def check_ranks(self, folder: str, saved: int) -> None:
        """Raises LearnerError for a checkpoint of another number of ranks. `saved`: 0 if that is not known."""
        if saved and saved != self.world.size:
            raise LearnerError(
                f"{folder}: this checkpoint has {saved} learner ranks, but the group has {self.world.size}; set "
                f"learner.num_ranks: {saved}"
            )

    def own_weights(self) -> dict[str, Tensor]:
        """{name: this rank's memory of a trained weight}, to be read and written in place: the whole weight, or this
        rank's part of it under ZeRO-3.

        Raises LearnerError if a part is not in memory.
        """
        named = self.inner_module.named_parameters()
        trained: dict[str, Any] = {name: each for name, each in named if each.requires_grad}
        if not self.is_partitioned:
            return {name: parameter.data for name, parameter in trained.items()}
        for name, parameter in trained.items():
            if parameter.ds_tensor.status is not PartitionedParamStatus.AVAILABLE:
                raise LearnerError(
                    f"{name} is on an NVMe disk (offload_param), where the weights of a stage's start cannot be put in "
                    "its place; offload to the cpu, or set objective.kl_coeff: 0"
                )
            parameter.partition()  # weights that are still whole here are gathered again
        self._optimizer.invalidate_secondary_tensor()
        return {name: parameter.ds_tensor for name, parameter in trained.items()}

    def own_part(self, name: str, whole: Tensor) -> Tensor:
        """This rank's part of `whole`, the weight called `name`, in the layout of `own_weights`."""
        return _part_of(self.inner_module.get_parameter(name), whole, self.world) if self.is_partitioned else whole

    def gathered(self, parameters: list[nn.Parameter]) -> contextlib.AbstractContextManager[None]:
        """In this block the parameters are whole on this rank (ZeRO-3 gathers them: all ranks must name the same)."""
        whole: contextlib.AbstractContextManager[None]
        whole = deepspeed.zero.GatheredParameters(parameters, enabled=self.is_partitioned)
        return whole


def compile_layers(module: nn.Module) -> None:
    """`learner.compile: layers`: compile each decoder layer at its first call. The layers share one compilation, sizes
    are symbolic, and weights keep their names. Attention over trees runs uncompiled inside them on a CPU.

    Raises LearnerError for a model without such layers, and where a CPU's compiler is missing. ZeRO-3 is refused before
    (deepspeed_config).
    """
    layers = [each for each in module.modules() if isinstance(each, GradientCheckpointingLayer)]
    if not layers:
        reason = "this model has no decoder layers as transformers writes them"
    elif not torch.cuda.is_available() and not any(map(shutil.which, (os.environ.get("CXX", "g++"), "clang++"))):
        reason = "there is no C++ compiler (g++) on the PATH"
    else:
        for layer in layers:
            layer.compile(dynamic=True)
        return
    raise LearnerError(f"learner.compile: layers is not possible here: {reason}; set learner.compile: off")


class Partition:
    """Divides the weights of a model over the ranks while it is created and read (ZeRO-3), so that no rank holds all of
    it. The constructor joins the process group."""

    def __init__(self, config: LearnerConfig, world: World) -> None:
        self._settings = deepspeed_config(config, on_gpu=torch.cuda.is_available())
        self._world = world
        _join(world, config.timeout_s)

    @contextlib.contextmanager
    def applied(self) -> Iterator[None]:
        """Weights of modules created in this block are divided at once. Other tensors are left unchanged, including the
        float32 frequencies of rotary positions, which DeepSpeed would round by default.

        Nothing is sent: by default DeepSpeed would broadcast rank 0's weights, which are not read yet.
        """
        divided = deepspeed.zero.Init(
            config_dict_or_path=self._settings, tensor_overrides=[DeepSpeedTensorOverride.device]
        )
        broadcast = deepspeed.comm.broadcast
        deepspeed.comm.broadcast = lambda *_, **__: None
        try:
            with divided:
                yield
        finally:
            deepspeed.comm.broadcast = broadcast

    def take(self, parameter: nn.Parameter, whole: Tensor) -> None:
        """This rank's part of a whole weight."""
        divided: Any = parameter
        divided.ds_tensor.data.copy_(_part_of(divided, whole, self._world))


def _part_of(parameter: Any, whole: Tensor, world: World) -> Tensor:
    num_here = parameter.ds_tensor.ds_numel
    part = whole.reshape(-1)[world.rank * num_here :][:num_here]
    return nn.functional.pad(part, (0, num_here - len(part)))


def gathered_over_ranks(values: Sequence[float]) -> NDArray[np.float64]:
    """[ranks, values]: those of every rank of the learner group."""
    own = torch.tensor(values, dtype=torch.float64)
    found = [own]
    if (size := torch.distributed.get_world_size()) > 1:
        found = [torch.empty_like(own) for _ in range(size)]
        torch.distributed.all_gather(found, own)
    return torch.stack(found).numpy()


def _find_ninja() -> None:
    """DeepSpeed compiles its optimisers with the `ninja` on the PATH; ours is in the folder of the running Python."""
    beside, path = os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)
    if beside not in path.split(os.pathsep):
        os.environ["PATH"] = os.pathsep.join([path, beside])


def _join(world: World, timeout_s: float) -> None:
    """Connect with the other ranks. `timeout_s`: how long a rank waits for another one, here and in every collective
    call."""
    host, port = world.master.rsplit(":", 1)
    timeout = timedelta(seconds=timeout_s)
    os.environ.update(
        MASTER_ADDR=host,
        MASTER_PORT=port,
        RANK=str(world.rank),
        WORLD_SIZE=str(world.size),
        LOCAL_RANK=str(world.local_rank),
    )
    if not torch.distributed.is_initialized():
        # Both on a GPU machine: NCCL carries the gradients, gloo the few numbers of a report.
        backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
        store = _store(world, host, int(port), timeout)
        torch.distributed.init_process_group(
            backend, store=store, rank=world.rank, world_size=world.size, timeout=timeout
        )
    # Its shared-memory all-reduce would be compiled on first use; gloo's is sufficient and needs no compiler.
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    main_backend = "nccl" if torch.cuda.is_available() else "gloo"
    deepspeed.init_distributed(dist_backend=main_backend, dist_init_required=False, verbose=False)
    # ZeRO reduces and gathers in groups that DeepSpeed makes without a timeout. They would have torch's of 30 minutes.
    deepspeed.comm.comm.cdb.new_group = functools.partial(torch.distributed.new_group, timeout=timeout)


def _store(world: World, host: str, port: int, timeout: timedelta) -> torch.distributed.TCPStore:
    """The store through which the ranks connect. By default it would listen on every address of rank 0's node, so it is
    given a socket that listens only on `host`.

    Raises LearnerError if rank 0 cannot listen there.
    """
    descriptor = None
    if world.rank == 0:
        try:
            found = world.listening
            bound = socket.create_server((host, port)) if found is None else socket.socket(fileno=found)
            bound.listen(world.size + 16)
            descriptor = bound.detach()
        except OSError as error:
            raise LearnerError(f"learner ranks cannot meet at {host}:{port}: {error.strerror}") from error
    return torch.distributed.TCPStore(
        host,
        port,
        world.size,
        is_master=world.rank == 0,
        timeout=timeout,
        wait_for_workers=False,
        master_listen_fd=descriptor,
    )

"""A learner rank that is out of memory: one line with what it asked for, what was planned, and keys that need less."""

from __future__ import annotations

import re

from cluster.planning.memory import GIB, learner_memory
from cluster.planning.model_size import model_size
from learners.deepspeed_config import deepspeed_config, is_offloaded
from spag_ray.config.run import RunConfig
from spag_ray.errors import SpagError

_ON_CPU = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
_ELSEWHERE = re.compile(
    r"out of memory|^MemoryError|unable to allocate|cannot allocate memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE
)


def out_of_memory(text: str) -> str | None:
    """What an error of torch or numpy says, without its advice; None if it is about something else."""
    if (found := _ON_CPU.search(text)) is not None:
        return f"it tried to allocate {int(found[1]) / GIB:.2f} GiB"
    if _ELSEWHERE.search(text) is None:
        return None
    return re.split(r"\.? Including non-PyTorch|\.? Of the allocated|\n", text.strip())[0].rstrip(".")


def memory_advice(config: RunConfig, model: str) -> str:
    """What was planned for a rank (planning/memory.py), and what to change."""
    learner = config.learner
    keys = [f"lower learner.max_tokens_per_microbatch ({learner.microbatch_tokens})"]
    if not learner.checkpoints_gradients:
        keys.append("set learner.gradient_checkpointing: true")
    zero = deepspeed_config(learner, on_gpu=learner.num_gpus > 0)["zero_optimization"]
    if zero["stage"] < 3:
        keys.append(f"raise learner.zero_stage ({zero['stage']}), with more learner.num_ranks ({learner.num_ranks})")
    if learner.num_gpus and not is_offloaded(zero, "offload_optimizer"):
        keys.append("offload the optimiser (learner.deepspeed: zero2_offload)")
    if learner.lora is None:
        keys.append("train adapters (learner.lora)")
    return f"{_planned(config, model)}{', or '.join(keys)}"


def _planned(config: RunConfig, model: str) -> str:
    try:
        size = model_size(model, config.model_shape)
    except SpagError:
        return ""
    if size is None:
        return ""
    memory = learner_memory(config, size)
    largest = sorted(memory.parts, key=lambda part: -part.num_bytes)[:4]
    terms = ", ".join(f"{part.name} {part.num_bytes / GIB:.2f}" for part in largest)
    where = f" of its GPU's {config.cluster.gpu_gib:g}" if config.learner.num_gpus else ""
    return f"{memory.num_bytes / GIB:.2f} GiB{where} were planned for each rank ({terms}, ...); "

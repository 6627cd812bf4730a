"""DeepSpeed's JSON, filled in from a run's learner section.

A file has DeepSpeed's usual format. "auto" is replaced by the run's value; other values are passed on. If the file and
the run set a value differently, the error names both. Settings that the run does not have (offload, buckets,
communication) come only from the file.

    config = deepspeed_config(LearnerConfig(deepspeed="zero3_offload"))
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from spag_ray.config.loading import DEEPSPEED_KEYS, find_config
from spag_ray.config.parts import LearnerConfig
from spag_ray.errors import ConfigError

# One node has at most as many GPUs, so more ranks talk over a network.
RANKS_OF_A_NODE = 8


def deepspeed_config(config: LearnerConfig, on_gpu: bool = False) -> dict[str, Any]:
    """DeepSpeed's configuration dict; an optimiser offloaded from a GPU is DeepSpeed's own CPU Adam.

    Raises ConfigError for a file that is missing, is not JSON, has a value of another kind, or contradicts the run.
    """
    path = find_config(config.deepspeed, "deepspeed") if config.deepspeed else None
    given = _read(path) if path else {}
    merged = _merged(given, _wanted(config), _keys_of_the_run(config), str(path))
    zero = merged["zero_optimization"]
    if type(stage := zero["stage"]) is not int or not 0 <= stage <= 3:
        raise ConfigError(f"{path}: zero_optimization.stage is {json.dumps(stage)}; it has to be 0, 1, 2 or 3")
    if merged["bf16"]["enabled"] and zero["stage"] == 0:
        raise ConfigError(
            f"{path or 'learner'}: ZeRO stage 0 with bfloat16 would add up gradients in bfloat16; "
            "set stage 1, or learner.dtype: float32"
        )
    if config.compile == "layers" and zero["stage"] == 3:
        raise ConfigError(
            "learner.compile: layers is not possible with ZeRO-3, which gathers the weights of a layer piece by piece, "
            "between its operations; set learner.compile: off, or ZeRO stage 1 or 2"
        )
    if is_offloaded(zero, "offload_optimizer") and zero["offload_optimizer"]["device"] == "nvme":
        raise ConfigError(
            f"{path}: zero_optimization.offload_optimizer.device is nvme, but each stage resets Adam's moments, which "
            "it cannot on a disk; set cpu"
        )
    if stage == 1:
        # Here gradients are summed in float32 and sent once, when a batch is complete. DeepSpeed would round them to
        # bfloat16 for that, also on a single rank, with a copy of them all.
        merged.setdefault("communication_data_type", "fp32")
    parameters = merged["optimizer"]["params"]
    if is_offloaded(zero, "offload_optimizer"):
        if on_gpu:
            parameters["torch_adam"] = False
        else:
            merged["zero_force_ds_cpu_optimizer"] = False
    if not parameters["torch_adam"]:  # DeepSpeed's own optimisers do not know these keys
        del parameters["torch_adam"], parameters["fused"]
    return merged


def dtype_of(settings: Mapping[str, Any]) -> str:
    """The name of the dtype that is trained, which a file may set in place of a run that sets none."""
    return "bfloat16" if settings["bf16"]["enabled"] else "float32"


def loads_in_parts(zero: Mapping[str, Any]) -> bool:
    """Whether each rank reads only its part of every weight (`zero` is DeepSpeed's zero_optimization): with ZeRO-3, if
    a part is a contiguous range of the weight's own numbers, in memory."""
    quantized = zero.get("zero_quantized_weights") or zero.get("zero_quantized_nontrainable_weights")
    on_disk = is_offloaded(zero, "offload_param") and zero["offload_param"]["device"] == "nvme"
    return zero["stage"] == 3 and not on_disk and not quantized and zero.get("zero_hpz_partition_size", 1) == 1


def is_offloaded(zero: Mapping[str, Any], key: str) -> bool:
    """Whether DeepSpeed keeps this (`offload_optimizer`, `offload_param`) off the GPU."""
    section = zero.get(key)
    return isinstance(section, Mapping) and section.get("device", "none") not in ("none", None)


def _wanted(config: LearnerConfig) -> dict[str, Any]:
    return {
        "train_micro_batch_size_per_gpu": 1,
        "gradient_accumulation_steps": 1,
        "gradient_clipping": config.max_grad_norm,
        "bf16": {"enabled": config.dtype == "bfloat16"},
        "data_types": {"grad_accum_dtype": "fp32"},
        "zero_optimization": {"stage": config.zero_stage, **_message_sizes(config.num_ranks)},
        # The learning rate is set before every step by learners/learner.py.
        "optimizer": {
            "type": "AdamW",
            "params": {
                "lr": 0.0,
                "betas": [0.9, 0.999],
                "eps": 1e-8,
                "weight_decay": config.weight_decay,
                # Torch's fused Adam is one kernel, on CPUs too; DeepSpeed's would have to be compiled with nvcc.
                "torch_adam": True,
                "fused": True,
            },
        },
        "zero_allow_untested_optimizer": True,
        "wall_clock_breakdown": False,
        # Else every forward pass, from the third step on, would wait until the GPU has done all before it.
        "timers": {"throughput": {"enabled": False}},
        "steps_per_print": 2**31 - 1,
    }


def _message_sizes(num_ranks: int) -> dict[str, int]:
    """Elements, 2 bytes each in bfloat16, by what carries them: calculated, not measured. DeepSpeed's buckets of 5e8
    would need gigabytes.

    NVLink (about 200 GB/s in a collective, 20 us of latency): 40 MB take 0.2 ms, ten times the latency, and 100 MB of
    weights arrive in the 0.8 ms that a GPU computes with as many. A network (about 45 GB/s a GPU, and with 32 to 64
    ranks 0.4 ms): 200 MB take 4.4 ms, ten times the latency again. Weights of up to 1e6 elements (norms, biases, and
    keys and values of few heads) stay whole then: they cost megabytes, and each would be a message of its own.
    """
    if num_ranks > RANKS_OF_A_NODE:
        bucket, prefetched, kept_whole = 100_000_000, 200_000_000, 1_000_000
    else:
        bucket, prefetched, kept_whole = 20_000_000, 50_000_000, 100_000
    return {
        "reduce_bucket_size": bucket,
        "allgather_bucket_size": bucket,
        "stage3_prefetch_bucket_size": prefetched,  # these two are read with ZeRO-3 alone
        "stage3_param_persistence_threshold": kept_whole,
    }


def _keys_of_the_run(config: LearnerConfig) -> dict[str, str]:
    """DeepSpeed's key -> the run's key, for values that the run sets. The file overrides values left at a default."""
    said = {key: f"learner.{name}" for key, name in DEEPSPEED_KEYS.items() if name in config.model_fields_set}
    # This program fixes these: one micro-batch is one call, and the schedule sets the rate.
    return said | {
        "train_micro_batch_size_per_gpu": "learner.max_tokens_per_microbatch (micro-batches are cut by tokens)",
        "gradient_accumulation_steps": "learner.max_tokens_per_microbatch (micro-batches are cut by tokens)",
        "optimizer.type": "the learner's optimiser",
        "optimizer.params.lr": "the stage's learning rate (imitation.learning_rate, self_play.learning_rate)",
    }


def _read(path: Path) -> dict[str, Any]:
    try:
        given = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: not a DeepSpeed configuration: not valid JSON ({error})") from error
    if not isinstance(given, dict):
        raise ConfigError(f"{path}: a DeepSpeed configuration is a JSON object, this is a {type(given).__name__}")
    for key in ("scheduler", "fp16", "train_batch_size"):
        value = given.get(key)
        is_disabled = isinstance(value, Mapping) and value.get("enabled") is False
        if value not in (None, "auto") and not is_disabled:
            raise ConfigError(f"{path}: {key!r} is set by the run, not by DeepSpeed's file; remove it")
    if given.get("compute_grad_norm", True) is not True:
        raise ConfigError(f'{path}: "compute_grad_norm" has to be true: the norm tells which steps to skip')
    if given.get("zero_optimization", {}) == "auto":
        raise ConfigError(f'{path}: "zero_optimization" is an object; only values in it can be "auto"')
    return {key: value for key, value in given.items() if key not in ("scheduler", "fp16", "train_batch_size")}


def _merged(
    given: Mapping[str, Any], wanted: Mapping[str, Any], said: Mapping[str, str], path: str, prefix: str = ""
) -> dict[str, Any]:
    merged: dict[str, Any] = dict(wanted)
    for key, value in given.items():
        name = f"{prefix}{key}"
        ours = wanted.get(key)
        if value == "auto":
            if key not in wanted and prefix:
                continue  # DeepSpeed's own default
            if key not in wanted:
                raise ConfigError(f'{path}: {name} is "auto", but the run says nothing about it; write a value')
        elif isinstance(value, Mapping) and isinstance(ours, Mapping):
            merged[key] = _merged(value, ours, said, path, f"{name}.")
        elif isinstance(ours, Mapping):
            raise ConfigError(f"{path}: {name} is {json.dumps(value)}; it has to be a JSON object")
        elif name in said and value != ours:
            raise ConfigError(f"{path} has {name} = {value!r}, but {said[name]} says {ours!r}; remove one of them")
        else:
            merged[key] = value
    return merged

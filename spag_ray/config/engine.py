"""The parts `engine` and `sync` of a RunConfig: the engines that play, and how new weights reach them. `engine.vllm`
sets vLLM's own arguments, most of which a run may set by vLLM's names.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from itertools import starmap
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from spag_ray.channels.base import AUTO, CHANNELS, known_or_auto
from spag_ray.config.parts import Part, dtype_for
from spag_ray.errors import nearest
from spag_ray.host.cpu_features import Dtype

# Arguments that this program's own keys set, and arguments whose values it relies on.
_OURS = {
    "model": "model",
    "seed": "seed",
    "dtype": "engine.dtype",
    "max_model_len": "engine.max_model_len",
    "max_num_seqs": "engine.max_num_seqs",
    "tensor_parallel_size": "engine.tensor_parallel_size",
    "gpu_memory_utilization": "engine.gpu_memory_utilization",
    "kv_cache_memory_bytes": "engine.kv_cache_gib",
    "enable_lora": "learner.lora",
    "max_lora_rank": "engine.max_lora_rank",
    "max_loras": "engine.max_adapters",
    "lora_target_modules": "learner.lora.targets",
    "weight_transfer_config": "sync.channel",
    "enable_sleep_mode": "placement",
}
_RELIED_ON = {
    "logprobs_mode": "the learner needs the log-probabilities of what was sampled from",
    "generation_config": "the run sets the sampling, not the model's folder",
    "override_generation_config": "the run sets the sampling",
    "logits_processors": "tokens would be sampled from other probabilities than the learner computes",
    "watermark_config": "tokens would be sampled from other probabilities than the learner computes",
    "diffusion_config": "the learner computes log-probabilities of tokens that are sampled from left to right",
    "tokenizer": "prompts are rendered with the model's own tokenizer, and games keep token ids",
    "skip_tokenizer_init": "engines read and answer token ids",
    "trust_remote_code": "code from a model's folder is never run",
    "worker_extension_cls": "it is used to load new weights",
    "distributed_executor_backend": "a run's placement group has no bundles for vLLM's workers",
    "pipeline_parallel_size": "an engine's GPUs are those of engine.tensor_parallel_size",
    "prefill_context_parallel_size": "an engine's GPUs are those of engine.tensor_parallel_size",
    "nnodes": "an engine is on one node",
    "device_ids": "an engine has the GPUs that Ray reserves for it",
    "data_parallel_size": "more engines are engine.num_engines",
}


class EngineRange(Part):
    """How many engines a policy has while a run lasts: `min` at first, then as many as its games need."""

    min: int = Field(ge=1, description="engines that the run starts with, and never gives back")
    max: int = Field(ge=1, description="engines at most; those above min are added where the cluster has room")
    grow_after_s: float = Field(20, ge=0, description="add an engine when it was needed for so long")
    shrink_after_s: float = Field(120, ge=0, description="let one go when it was not needed for so long")

    @model_validator(mode="after")
    def _check(self) -> EngineRange:
        if self.min > self.max:
            raise ValueError(f"min is {self.min}, but max is {self.max}; swap them")
        return self


def _kind_of(value: Any) -> str:
    """So that an error is one of the kind that was meant."""
    return "range" if isinstance(value, Mapping | EngineRange) else "number"


def _is_finite(value: Any) -> bool:
    """Whether all numbers are finite in a value of any shape."""
    if isinstance(value, Mapping):
        return all(map(_is_finite, value.values()))
    if isinstance(value, list | tuple):
        return all(map(_is_finite, value))
    return not isinstance(value, float) or math.isfinite(value)


NumEngines = Annotated[
    Annotated[int, Field(ge=1), Tag("number")] | Annotated[EngineRange, Tag("range")], Discriminator(_kind_of)
]


class EngineConfig(Part):
    """The engines that play a policy's turns."""

    kind: Literal["vllm", "transformers"] = Field(
        "vllm", description="`transformers`: a slow engine for CPUs that needs no vLLM, one game after the other"
    )
    num_engines: NumEngines = Field(
        1, description="engines that play the newest weights; `{min: 2, max: 16}`: as many as games need"
    )
    max_model_len: int = Field(2048, ge=16, description="tokens of a prompt and its reply together")
    max_num_seqs: int = Field(64, ge=1, description="sequences decoded at once in one engine")
    kv_cache_gib: float = Field(1.0, gt=0, description="GiB of KV cache (CPU)")
    gpu_memory_utilization: float = Field(0.85, gt=0, lt=1, description="share of a GPU's memory (GPU)")
    tensor_parallel_size: int = Field(1, ge=1, description="GPUs of one engine")
    max_lora_rank: int | None = Field(None, ge=1, description="largest adapter rank; set by a run with lora")
    max_adapters: int = Field(2, ge=1, description="adapters that an engine holds; set by a run with lora")
    num_gpus: float = Field(0, ge=0, description="GPUs Ray reserves for one engine")
    dtype: Dtype = Field(default_factory=dtype_for, description="by default bfloat16, on CPUs without AVX-512 float32")
    num_cpus: float = Field(1, ge=0, description="CPU cores Ray reserves for one engine")
    env: dict[str, str] = Field(
        {}, description="environment of every engine, set before it loads its libraries (NCCL_SOCKET_IFNAME, ...)"
    )
    turn_timeout_s: float = Field(600, gt=0, description="a turn that takes longer is retried on another engine")
    start_timeout_s: float = Field(
        600,
        gt=0,
        description="deadline for an engine to start; also how long games wait while there is none, and none waits for "
        "room",
    )
    vllm: dict[str, Any] = Field(
        {}, description="further arguments of vLLM's engine, by vLLM's names (quantization: fp8, ...)"
    )

    @property
    def min_engines(self) -> int:
        """The engines of a policy at the run's start."""
        return self.num_engines.min if isinstance(self.num_engines, EngineRange) else self.num_engines

    @property
    def longest_turn_s(self) -> float:
        """No turn takes longer that need not wait for room: it has three attempts, perhaps after an engine's start."""
        return 3 * self.turn_timeout_s + self.start_timeout_s

    @model_validator(mode="after")
    def _vllm_leaves_what_is_ours(self) -> EngineConfig:
        if self.vllm and self.kind != "vllm":
            raise ValueError(f"vllm has arguments of vLLM's engine, but kind is {self.kind}; leave one of them out")
        if not _is_finite(self.vllm):
            raise ValueError("vllm has a number that is not finite; leave it out")
        if reason := next(filter(None, starmap(why_not_passed, self.vllm.items())), None):
            raise ValueError(reason)
        return self


class SyncConfig(Part):
    """How new weights reach the engines."""

    channel: Annotated[str, AfterValidator(known_or_auto)] = Field(
        AUTO,
        description="how weights travel: "
        + ", ".join(f"{name} ({each.way})" for name, each in CHANNELS.items())
        + "; `auto`: nccl or ipc where engines and learner have GPUs, else object_store",
    )
    update: Literal["between_games", "between_turns", "in_flight"] = Field(
        "between_turns",
        description="when a playing engine loads new weights: after its games, after its current turns, or at once "
        "(turns are paused and continue with the new weights); adapters load at once, for new turns",
    )
    max_probe_gap: float = Field(
        0.3,
        ge=0,
        description="an engine is replaced when the mean gap of a fixed turn's log-probabilities to the learner's is "
        "above this (the run ends when no engine is below it); nats",
    )
    timeout_s: float = Field(
        300,
        gt=0,
        description="an engine that has not loaded a version by then is stopped; where it first finishes its turns, "
        "`engine.turn_timeout_s` is added",
    )


def why_not_passed(name: str, value: Any) -> str | None:
    """Why the argument of this name and value is refused; None if it is passed on."""
    if name in _OURS:
        return f"vllm.{name} is set by {_OURS[name]}; set that"
    if name in _RELIED_ON:
        return f"vllm.{name} cannot be set: {_RELIED_ON[name]}"
    speculates = name == "speculative_config" and isinstance(value, Mapping)
    if speculates and value.get("rejection_sample_method") == "synthetic":
        return (
            "vllm.speculative_config.rejection_sample_method: synthetic accepts tokens at a given rate, independent of "
            "their probability; the learner needs tokens sampled from the model: use standard or block"
        )
    return None


def unknown_argument(names: Iterable[str], known: Iterable[str] | None = None) -> str | None:
    """What is wrong with the first of these names that is none of vLLM's arguments; None if all are. `known`: its
    arguments; without them, those of the vLLM that is installed here, if one is."""
    known = set(_installed_arguments() if known is None else known)
    unknown = sorted(set(names) - known) if known else []
    if not unknown:
        return None
    near = nearest(unknown[0], known)
    hint = f"did you mean {near}?" if near else "leave it out"
    return f"engine.vllm.{unknown[0]}: the vLLM that is installed has no such argument; {hint}"


def _installed_arguments() -> set[str]:
    """The fields of AsyncEngineArgs, read from its source: importing vLLM takes seconds, and its build for GPUs needs
    one."""
    spec = find_spec("vllm")
    if spec is None or spec.origin is None:
        return set()
    try:
        tree = ast.parse((Path(spec.origin).parent / "engine" / "arg_utils.py").read_text(encoding="utf-8"))
    except (OSError, SyntaxError):
        return set()
    classes = [node for node in tree.body if isinstance(node, ast.ClassDef)]
    of_engine = [each for each in classes if each.name in ("EngineArgs", "AsyncEngineArgs")]
    fields = [node.target for each in of_engine for node in each.body if isinstance(node, ast.AnnAssign)]
    return {field.id for field in fields if isinstance(field, ast.Name)}

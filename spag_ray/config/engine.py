"""The parts `engine` and `sync` of a RunConfig: the engines that play, and how new weights reach them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import starmap
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Discriminator, Field, Tag, model_validator

from spag_ray.channels.base import AUTO, CHANNELS, known_or_auto
from spag_ray.config.parts import Part, dtype_for
from spag_ray.config.vllm_arguments import why_not_passed
from spag_ray.host.cpu_features import Dtype


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

"""Which arguments of vLLM's engine a run may set by vLLM's names (`engine.vllm`), and which not."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from spag_ray.errors import nearest

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

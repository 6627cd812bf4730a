"""Registers the model families of this program with vLLM.

vLLM calls `register` in each of its processes, because setup.py names it as an entry point of `vllm.general_plugins`:
trained models can be served with `vllm serve`. A run does not rely on the entry point, which a job's packages lack:
vllm_policy.py and vllm_weights.py also call it.
"""

from __future__ import annotations

from spag_ray.families.alibi_llama import AlibiLlamaForCausalLM


def register() -> None:
    """May be called any number of times. Imports no model class of vLLM."""
    from vllm import ModelRegistry

    import spag_ray.families.auto  # noqa: F401

    name = AlibiLlamaForCausalLM.__name__
    if name not in ModelRegistry.get_supported_archs():
        ModelRegistry.register_model(name, f"actors.vllm_models.alibi_llama:{name}")

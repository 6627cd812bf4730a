"""transformers' Auto classes, which also know the families of this package."""

from __future__ import annotations

from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from spag_ray.families.alibi_llama import AlibiLlamaConfig, AlibiLlamaForCausalLM

__all__ = ["AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"]

AutoConfig.register(AlibiLlamaConfig.model_type, AlibiLlamaConfig, exist_ok=True)
AutoModelForCausalLM.register(AlibiLlamaConfig, AlibiLlamaForCausalLM, exist_ok=True)

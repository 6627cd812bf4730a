"""transformers' Auto classes, which also know the families of this package."""

from __future__ import annotations

from transformers import AutoModelForCausalLM

from spag_ray.families.alibi_llama import AlibiLlamaForCausalLM
from spag_ray.families.torch_free import AlibiLlamaConfig, AutoConfig, AutoTokenizer

__all__ = ["AutoConfig", "AutoModelForCausalLM", "AutoTokenizer"]

AutoModelForCausalLM.register(AlibiLlamaConfig, AlibiLlamaForCausalLM, exist_ok=True)

"""transformers' Auto classes, which also know the families of this package. A whole model is read with them."""

from __future__ import annotations

from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM

from spag_ray.errors import ModelError, reason_of
from spag_ray.families.alibi_llama import AlibiLlamaForCausalLM
from spag_ray.families.torch_free import AlibiLlamaConfig, AutoConfig, AutoTokenizer

__all__ = ["AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "read_model"]

AutoModelForCausalLM.register(AlibiLlamaConfig, AlibiLlamaForCausalLM, exist_ok=True)


def read_model(folder: str, **options: Any) -> Any:
    """The model of a folder. `options` of from_pretrained. Raises ModelError if transformers cannot read it, and if its
    weights are not those that its config.json describes."""
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
            ignore_mismatched_sizes=True,  # they are named below
            **options,
        )
    except Exception as error:  # transformers' checks of config.json raise kinds of their own
        is_pickle = isinstance(error, UnpicklingError)  # torch advises to run what may be in it
        reason = "pytorch_model.bin is not what torch saves" if is_pickle else reason_of(error)
        remedy = "; copy the model again" if is_pickle or isinstance(error, SafetensorError) else ""
        raise ModelError(f"{folder}: transformers cannot load this model: {reason}{remedy}") from error
    for fault in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if loading[fault]:
            raise ModelError(
                f"{folder}: its weights are not those of the {model.config.model_type} model that its config.json "
                f"describes ({len(loading[fault])} {fault.replace('_', ' ')}, such as {sorted(loading[fault])[0]!s}); "
                "copy both from one model"
            )
    return model

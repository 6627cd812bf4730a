"""transformers' Auto classes, which also know the families of this package; a model of a folder, and what engines call
its weights.
"""

from __future__ import annotations

from collections.abc import Callable
from pickle import UnpicklingError
from typing import Any

from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

from spag_ray.errors import ModelError, reason_of
from spag_ray.families.alibi_llama import AlibiLlamaForCausalLM
from spag_ray.families.torch_free import AlibiLlamaConfig, AutoConfig, AutoTokenizer

__all__ = ["AutoConfig", "AutoModelForCausalLM", "AutoTokenizer", "file_name", "read_model"]

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


_JOINED = {".experts.gate_up_proj": ".experts.w13", ".experts.down_proj": ".experts.w2"}


def file_name(model: PreTrainedModel) -> Callable[[str], str]:
    """What engines call a weight that has this name in memory. They know the names of files, some of which transformers
    changes as it loads a family (Mixtral's `block_sparse_moe` becomes `mlp`). Weights of experts that it joins stay
    joined: vLLM knows them by the names of their parts, `gate_up_proj` and `down_proj`, or `w13` and `w2`."""
    found = get_model_conversion_mapping(model, add_legacy=False)
    renamings = [each.reverse_transform() for each in reversed(found) if type(each) is WeightRenaming]
    parts = {part for each in found if isinstance(each, WeightConverter) for part in each.source_patterns}
    joined = _JOINED if any(part.endswith(".w1.weight") for part in parts) else {}

    def named(name: str) -> str:
        name = rename_source_key(name, renamings, [], reverse=True)[0]
        for suffix, other in joined.items():
            if name.endswith(suffix):
                return name.removesuffix(suffix) + other
        return name

    return named

"""The names that engines give to weights."""

from __future__ import annotations

from collections.abc import Callable

from transformers import PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightConverter, WeightRenaming, rename_source_key

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

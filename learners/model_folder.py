"""A model folder as transformers reads it, complete or refused."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import AutoModelForCausalLM

from spag_ray.errors import ModelError


def load_model(folder: str, dtype: torch.dtype, attention: str) -> torch.nn.Module:
    """A model folder as transformers reads it, complete.

    Raises ModelError when there is none, it cannot be loaded, or its weights are not those its config.json describes.
    """
    if not Path(folder).is_dir():
        raise ModelError(f"{folder}: no such model folder")
    try:
        model, loading = AutoModelForCausalLM.from_pretrained(
            folder,
            dtype=dtype,
            attn_implementation=attention,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{folder}: transformers cannot load this model: {error}") from error
    for fault in ("missing_keys", "mismatched_keys", "unexpected_keys"):
        if loading[fault]:
            raise ModelError(
                f"{folder}: its weights are not those of the {model.config.model_type} model that its config.json "
                f"describes ({len(loading[fault])} {fault.replace('_', ' ')}, such as {sorted(loading[fault])[0]!s})"
            )
    return model

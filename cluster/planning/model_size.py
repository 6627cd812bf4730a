"""The size of a model, from its folder's config.json and the headers of its weights. No weights are loaded.

    size = model_size("/models/llama-2-7b", shape=None)
    size.num_parameters, size.kv_bytes_per_token(2)        # 6738415616, 524288

If the folder is missing, the run's `model_shape` is used.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from actors.models import BUILT_IN, cache_folder
from spag_ray.config.parts import ModelShape
from spag_ray.errors import ModelError
from spag_ray.weights.weight_files import weight_files


@dataclass(frozen=True)
class ModelSize:
    """`source` says where the numbers come from. `shape` is None for an unknown family: only its weights are
    counted. `longest_tree`: tokens that the learner may pack into one tree (packing.check_packable), None for any."""

    num_parameters: int
    source: str
    shape: ModelShape | None = None
    longest_tree: int | None = None

    def kv_bytes_per_token(self, bytes_per_value: int) -> int | None:
        """A key and a value of every layer; None if the shape is unknown."""
        if self.shape is None:
            return None
        return 2 * self.shape.num_hidden_layers * kv_heads(self.shape) * head_dim(self.shape) * bytes_per_value

    def num_adapter_parameters(self, rank: int, targets: tuple[str, ...]) -> int | None:
        """Parameters of low-rank adapters on these linear layers (all if empty): rank * (inputs + outputs) each; None
        if the shape is unknown."""
        if self.shape is None:
            return None
        layers = linear_layers(self.shape)
        chosen = [layers[name] for name in targets or layers if name in layers]
        return self.shape.num_hidden_layers * sum(rank * (inputs + outputs) for inputs, outputs in chosen)


def model_size(model: str, shape: ModelShape | None) -> ModelSize | None:
    """From the weights' headers, else from config.json, else from `shape`; None if all of them are missing.

    Raises ModelError for a config.json or a header that cannot be read.
    """
    folder = cache_folder() / BUILT_IN if model == BUILT_IN else Path(os.path.expanduser(model))
    if not (folder / "config.json").is_file():
        if shape is None:
            return None
        return ModelSize(count_parameters(shape), "model_shape of the configuration (no model folder here)", shape)
    given = _config_of(folder)
    found, longest = _shape_of(given), _longest_tree(given)
    counted = stored_parameters(folder)
    if counted is not None:
        return ModelSize(counted, f"the headers of the weights in {folder}", found, longest)
    return None if found is None else ModelSize(count_parameters(found), f"{folder}/config.json", found, longest)


def _longest_tree(given: Mapping[str, Any]) -> int | None:
    """The sliding window, and where positions depend on the length of a row (`dynamic`, `longrope`) the length that
    the model was trained with, whichever is smaller."""
    rotation = given.get("rope_parameters") or given.get("rope_scaling") or {}
    limits = [given.get("sliding_window") if given.get("use_sliding_window", True) else None]
    if rotation.get("rope_type", rotation.get("type")) in ("dynamic", "longrope"):
        of_folder = given.get("original_max_position_embeddings") or given.get("max_position_embeddings")
        limits.append(rotation.get("original_max_position_embeddings") or of_folder)
    return min((limit for limit in limits if limit), default=None)


def _config_of(folder: Path) -> Mapping[str, Any]:
    try:
        given: Any = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except OSError as error:
        raise ModelError(f"{folder}/config.json cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:  # also of bytes that are no UTF-8
        raise ModelError(f"{folder}/config.json is not valid JSON: {error}") from error
    return given if isinstance(given, dict) else {}


def _shape_of(given: Mapping[str, Any]) -> ModelShape | None:
    """None for a family that `count_parameters` does not know."""
    try:
        return ModelShape.model_validate(
            {key: given[key] for key in ModelShape.model_fields if given.get(key) is not None}
        )
    except ValueError:  # raised by pydantic for keys of another family
        return None


def stored_parameters(folder: Path) -> int | None:
    """The number of parameters in the folder's safetensors files, or None if its weights are in no such files."""
    files = [file for file in weight_files(folder) if file.suffix == ".safetensors"]
    if not files:
        return None
    tensors: dict[str, int] = {}
    for file in files:
        tensors |= _tensors(file)
    return sum(tensors.values())


def count_parameters(shape: ModelShape) -> int:
    """The number of parameters of a causal language model of this shape."""
    width = shape.hidden_size
    heads = shape.num_attention_heads * head_dim(shape)
    keys = kv_heads(shape) * head_dim(shape)
    layer = sum(inputs * outputs for inputs, outputs in linear_layers(shape).values())
    if shape.model_type == "gpt_neox":  # all linear layers and layer norms have biases
        layer += (heads + 2 * keys) + width + shape.intermediate_size + width + 4 * width
        last_norm = 2 * width
    else:
        layer += 2 * width
        layer += heads + 2 * keys if shape.model_type == "qwen2" else 0
        layer += 2 * head_dim(shape) if shape.model_type == "qwen3" else 0
        last_norm = width
    return shape.num_hidden_layers * layer + last_norm + num_embeddings(shape)


def num_embeddings(shape: ModelShape) -> int:
    """Parameters of the token embeddings and of the output layer, which may be the same."""
    return shape.vocab_size * shape.hidden_size * (1 if shape.tie_word_embeddings else 2)


def linear_layers(shape: ModelShape) -> Mapping[str, tuple[int, int]]:
    """{name: (inputs, outputs)} of the linear layers of one block."""
    width, inner = shape.hidden_size, shape.intermediate_size
    heads, keys = shape.num_attention_heads * head_dim(shape), kv_heads(shape) * head_dim(shape)
    if shape.model_type == "gpt_neox":
        return {
            "query_key_value": (width, heads + 2 * keys),
            "dense": (heads, width),
            "dense_h_to_4h": (width, inner),
            "dense_4h_to_h": (inner, width),
        }
    return {
        "q_proj": (width, heads),
        "k_proj": (width, keys),
        "v_proj": (width, keys),
        "o_proj": (heads, width),
        "gate_proj": (width, inner),
        "up_proj": (width, inner),
        "down_proj": (inner, width),
    }


def kv_heads(shape: ModelShape) -> int:
    return shape.num_key_value_heads or shape.num_attention_heads


def head_dim(shape: ModelShape) -> int:
    return shape.head_dim or shape.hidden_size // shape.num_attention_heads


def _tensors(file: Path) -> dict[str, int]:
    """{tensor: its number of parameters}. A safetensors file begins with the length of its header (8 bytes,
    little-endian), then the header as JSON."""
    try:
        with file.open("rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            if not 2 <= length <= min(100 * 2**20, file.stat().st_size):
                raise ValueError(f"a header of {length} bytes")
            header = json.loads(opened.read(length))
        return {name: math.prod(each["shape"]) for name, each in header.items() if name != "__metadata__"}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ModelError(f"{file}: its header cannot be read ({error}); copy the model again") from error

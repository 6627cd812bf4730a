"""A model folder as transformers reads it, complete or refused: whole, or each rank its part of it (ZeRO-3). Also how
it is written, and whether it can be: a model that can be read and not saved is refused before it is trained."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor, nn
from transformers import GenerationConfig
from transformers.initialization import no_init_weights

from spag_ray.errors import ModelError, reason_of
from spag_ray.families.auto import AutoModelForCausalLM, read_model
from spag_ray.families.torch_free import read_config, read_tokenizer
from spag_ray.weights.weight_files import StoredWeights

# The settings that transformers refuses to save without `do_sample`, and the value of each that it lets through.
_SAMPLING = {
    "temperature": 1.0,
    "top_k": 50,
    "top_p": 1.0,
    "min_p": None,
    "top_h": None,
    "typical_p": 1.0,
    "epsilon_cutoff": 0.0,
    "eta_cutoff": 0.0,
}


def load_model(folder: str, dtype: torch.dtype, attention: str) -> torch.nn.Module:
    """A model folder as transformers reads it, complete.

    Raises ModelError when it is missing, cannot be loaded, or its weights do not match its config.json.
    """
    if not Path(folder).is_dir():
        raise ModelError(f"{folder}: no such model folder")
    return _without_dropout(_read(folder, dtype=dtype, attn_implementation=attention))


def _without_dropout(model: torch.nn.Module) -> torch.nn.Module:
    """The model that is trained is the one that played and that scores: a random mask would be taken for a change of
    policy. Its config.json keeps what it says."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        for name, value in list(vars(module).items()):
            if isinstance(value, float) and any(part in name for part in ("dropout", "pdrop", "layerdrop", "jitter")):
                setattr(module, name, 0.0)
    return model


def load_model_in_parts(
    folder: str,
    dtype: torch.dtype,
    attention: str,
    partitioned: Callable[[], AbstractContextManager[Any]],
    take_part: Callable[[torch.nn.Parameter, Tensor], None],
) -> torch.nn.Module:
    """The same in a process that keeps a part of each weight. `partitioned` is the context in which a module's weights
    are divided when it is created. `take_part` copies this rank's part of a whole weight, which is mapped from its
    file. A folder whose weights differ from the model's in names or shapes (transformers converts them while loading)
    is loaded whole.

    Raises ModelError as `load_model` does.
    """
    if (stored := StoredWeights.of(Path(folder))) is None:
        return load_model(folder, dtype, attention)
    empty = check_loadable(folder)
    if not stored.are_those_of({name: tuple(each.shape) for name, each in empty.named_parameters()}):
        return load_model(folder, dtype, attention)
    try:
        with no_init_weights(), partitioned():
            model = AutoModelForCausalLM.from_config(empty.config, dtype=dtype, attn_implementation=attention)
        model.tie_weights()
        model.generation_config = empty.generation_config
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"{folder}: transformers cannot load this model: {reason_of(error)}") from error
    for name, parameter in model.named_parameters():
        take_part(parameter, stored[name])
    return _without_dropout(model.eval())


def write_model(model: Any, weights: dict[str, Tensor], tokenizer_of: str, folder: Path) -> None:
    """A model with these weights, and the tokenizer of another folder, as transformers reads them.

    Raises ModelError when transformers refuses to write them, or the disk has no room.
    """
    tokenizer = read_tokenizer(tokenizer_of)
    try:
        model.save_pretrained(folder, state_dict=weights)
        tokenizer.save_pretrained(folder)
    except (OSError, ValueError, RuntimeError, TypeError, SafetensorError) as error:
        raise ModelError(reason_of(error)) from error


def check_loadable(folder: str) -> Any:
    """The model of a folder without its weights, on no device: only the index and the headers of its files are read.

    Raises ModelError as `load_model` does, and for weights that no learner can train.
    """
    return _read(folder, device_map="meta")


def check_saveable(folder: str) -> None:
    """Writes the model of a folder, without its weights, as a stage's end writes it. Raises ModelError if it cannot be
    written: the stage would be trained in vain."""
    model = check_loadable(folder)
    read_tokenizer(folder)
    with tempfile.TemporaryDirectory() as aside:
        try:
            write_model(model, {}, folder, Path(aside))
        except ModelError as error:
            raise ModelError(
                f"{folder}: this model can be read, but not saved after its training; correct config.json, "
                f"generation_config.json or the tokenizer's files ({error})"
            ) from error


def _read(folder: str, **options: Any) -> Any:
    """The complete model of a folder. `options` of from_pretrained."""
    config = read_config(folder)
    quantized = getattr(config, "quantization_config", None)
    if quantized is not None:  # transformers would ask for the package that reads them, or load what does not train
        method = quantized.get("quant_method") if isinstance(quantized, dict) else type(quantized).__name__
        raise ModelError(
            f"{folder}: its weights are quantised ({method}; quantization_config in config.json), and a learner trains "
            "whole ones; give the model that this one was made from, in bfloat16 or float32"
        )
    model = read_model(folder, **options)
    _make_saveable(model.generation_config)
    return model


def _make_saveable(generation: GenerationConfig | None) -> None:
    """transformers reads sampling settings without `do_sample`, as Llama 2 and Vicuna were published, ignores them, and
    refuses to save them. They are meant, so `do_sample` is set. A model that is greedy, by `do_sample: false` or a
    temperature of 0, stays greedy, and the settings that it does not use are dropped. None: of a model that cannot
    generate."""
    if generation is None or generation.do_sample:
        return
    unused = [name for name, default in _SAMPLING.items() if getattr(generation, name) not in (None, default)]
    if unused and generation.do_sample is None and generation.temperature != 0:
        generation.do_sample = True
        return
    for name in unused:
        setattr(generation, name, None)

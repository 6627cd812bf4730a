"""Low-rank adapters (peft) on a trained model, exported merged into whole weights or alone.

model = with_adapters(model, LoraConfig(rank=16))
weights = merged_weights(model)

peft is imported when it is used.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from spag_ray.config.parts import LoraConfig
from spag_ray.errors import ModelError

# Name of a weight -> its parameters, and the function that computes it while they are gathered.
Weights: TypeAlias = Mapping[str, tuple[list[nn.Parameter], Callable[[], Tensor]]]
ADAPTER = "default"
_PREFIX = "base_model.model."


def with_adapters(model: Any, config: LoraConfig) -> Any:
    """The model with new adapters; only they are trained. Raises ModelError for targets that the model lacks."""
    import peft

    settings = peft.LoraConfig(
        r=config.rank,
        lora_alpha=config.alpha,
        lora_dropout=0.0,
        target_modules=list(config.targets) or "all-linear",
        task_type="CAUSAL_LM",
    )
    try:
        return peft.get_peft_model(model, settings, autocast_adapter_dtype=False)
    except ValueError as error:
        raise ModelError(f"learner.lora: {error}") from error


def merged_weights(model: Any) -> Weights:
    """Every weight of the base model under its own name (W + alpha / rank * B A if the layer has an adapter)."""
    from peft.tuners.lora import LoraLayer

    layers = {
        f"{name}.base_layer.weight": module for name, module in model.named_modules() if isinstance(module, LoraLayer)
    }
    weights: dict[str, tuple[list[nn.Parameter], Callable[[], Tensor]]] = {}
    for name, parameter in model.named_parameters():
        if ".lora_" in name:
            continue
        plain = name.removeprefix(_PREFIX).replace(".base_layer", "")
        layer: Any = layers.get(name)
        if layer is None:
            weights[plain] = ([parameter], parameter.detach)
        else:
            parts = [parameter, layer.lora_A[ADAPTER].weight, layer.lora_B[ADAPTER].weight]
            weights[plain] = (parts, partial(_merged, layer))
    return weights


def adapter_weights(model: Any) -> Weights:
    """The adapters alone, under the names that peft's files have."""
    return {
        name.replace(f".{ADAPTER}.", "."): ([parameter], parameter.detach)
        for name, parameter in model.named_parameters()
        if ".lora_" in name
    }


def adapter_config(model: Any) -> dict[str, Any]:
    """What peft writes beside an adapter's weights (adapter_config.json), in plain values: they go to processes that
    import neither peft nor torch."""
    settings = model.peft_config[ADAPTER].to_dict()
    settings["target_modules"] = sorted(settings["target_modules"])
    known = {key: value for key, value in settings.items() if isinstance(value, str | int | float | bool | list | None)}
    plain: dict[str, Any] = json.loads(json.dumps(known))  # peft's texts are members of an Enum of its own
    return plain


def save_adapter(folder: str, weights: Mapping[str, Tensor], config: Mapping[str, Any]) -> None:
    """Write an adapter as peft reads it: adapter_model.safetensors and adapter_config.json. Raises ModelError when the
    disk has no room."""
    path = Path(folder)
    path.mkdir(parents=True, exist_ok=True)
    try:
        save_file({name: weight.contiguous() for name, weight in weights.items()}, path / "adapter_model.safetensors")
    except SafetensorError as error:
        raise ModelError(str(error)) from error
    (path / "adapter_config.json").write_text(json.dumps(dict(config), indent=1) + "\n", encoding="utf-8")


def _merged(layer: Any) -> Tensor:
    return layer.base_layer.weight + layer.get_delta_weight(ADAPTER)

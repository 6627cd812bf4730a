"""The settings of `preset: published`, and how a run's own settings override them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

PUBLISHED: dict[str, Any] = {
    "prompts": "flat",
    "render": "varied",
    "game": {"rules": "published", "max_turns": 5},
    "sampling": {"temperature": 1.2, "top_k": 50, "max_new_tokens": 256},
    "objective": {"loss": "published", "role_weight_cap": None},
}


def merged(defaults: Mapping[str, Any], data: Mapping[str, Any]) -> dict[str, Any]:
    """`data` over `defaults`, mapping by mapping."""
    found = dict(defaults)
    for key, value in data.items():
        both = isinstance(value, Mapping) and isinstance(found.get(key), Mapping)
        found[key] = merged(found[key], value) if both else value
    return found

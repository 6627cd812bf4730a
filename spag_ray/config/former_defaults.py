"""Defaults that have changed: a run folder made with a former default keeps it.

>>> from spag_ray.config.loading import parse_config
>>> before = parse_config({"objective": {"role_weight_cap": None}})     # all keys are written out in a run folder
>>> kept, changed = keep_former_defaults(parse_config({}), before)
>>> kept.objective.role_weight_cap, changed
(None, ['objective.role_weight_cap'])
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from spag_ray.config.run import RunConfig

# {key: its defaults in earlier versions}
FORMER_DEFAULTS: Mapping[str, tuple[Any, ...]] = {
    "objective.role_weight_cap": (None,),
    "sync.channel": ("object_store",),
    "words.source": ("textarena",),
    "words.deck": ("textarena",),
}
# {key that earlier versions lacked: the value that keeps their behaviour}
FORMER_BEHAVIOUR: Mapping[str, Any] = {"words.deck": "textarena"}


def with_former_behaviour(settings: Mapping[str, Any]) -> dict[str, Any]:
    """A run folder's settings (which have every key of their version) with the keys that were added since.

    >>> with_former_behaviour({"words": {"source": "textarena"}})
    {'words': {'source': 'textarena', 'deck': 'textarena'}}
    """
    filled = dict(settings)
    for key, value in FORMER_BEHAVIOUR.items():
        *parents, leaf = key.split(".")
        part = filled
        if not isinstance(filled.get(parents[0]) or {}, Mapping):
            continue  # a value in place of a group of keys is refused by parse_config
        for name in parents:
            part[name] = dict(part.get(name) or {})
            part = part[name]
        part.setdefault(leaf, value)
    return filled


def keep_former_defaults(config: RunConfig, before: RunConfig) -> tuple[RunConfig, list[str]]:
    """`config` with the value of `before` wherever `config` has today's default and `before` a former one; and the keys
    of these values.

    A value equal to today's default counts as not chosen, because files that are sent as a job write out every key.
    """
    settings = config.model_dump(mode="json")
    then = before.model_dump(mode="json")
    today = RunConfig.model_validate({"preset": config.preset}).model_dump(mode="json")
    changed = []
    for key, former in FORMER_DEFAULTS.items():
        *parents, leaf = key.split(".")
        ours, old, default = (_part(each, parents) for each in (settings, then, today))
        if ours[leaf] == default[leaf] and old[leaf] != ours[leaf] and old[leaf] in former:
            ours[leaf] = old[leaf]
            changed.append(key)
    return (RunConfig.model_validate(settings) if changed else config), changed


def _part(settings: dict[str, Any], parents: list[str]) -> dict[str, Any]:
    for name in parents:
        settings = settings[name]
    return settings

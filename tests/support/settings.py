"""Configurations as a command line writes them."""

from functools import reduce
from typing import Any

from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig, merged
from spag_ray.plain_yaml import parse_yaml


def config_of(settings: str) -> RunConfig:
    """The defaults, changed: config_of("schedule=stream; stream.max_lag=5"). What comes later counts."""
    data: dict[str, Any] = {}
    for setting in settings.split("; ") if settings else ():
        key, _, text = setting.partition("=")
        data = merged(data, reduce(lambda value, part: {part: value}, reversed(key.split(".")), parse_yaml(text, key)))
    return parse_config(data)

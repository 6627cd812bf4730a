"""The start of a detached run by a session (cluster/console.py). Ray sends a function by the name of its module, so
this one is among the files that are sent with a run; the session's own module is not."""

from __future__ import annotations

from pathlib import Path

from spag_ray.config.loading import parse_config
from spag_ray.plain_yaml import parse_settings


def start(config_text: str, run_dir: str, resume: bool) -> list[str]:
    """Executed on the cluster: check everything there and create the detached Run; returns the warnings."""
    from cluster.launch.placed_run import place_detached  # a session may have no torch

    config = parse_config(parse_settings(config_text, "the configuration"), "the configuration")
    return place_detached(config, Path(run_dir), resume)

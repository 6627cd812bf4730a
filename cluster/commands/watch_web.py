"""`spag-ray watch --web`: a live view of runs on a page; serve/live.py serves it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cluster.commands.report import decoder
from cluster.serve.watch_web import PageWanted, watch_web
from spag_ray.errors import ConfigError
from spag_ray.host.addresses import looks_like_address


def run_watch_web(targets: Sequence[str], wanted: PageWanted, run: str | None, once: bool, console: Console) -> None:
    """`spag-ray watch --web`. Raises ConfigError for what a page cannot do."""
    if once or run is not None:
        raise ConfigError("--once and --run are for the view in the terminal; leave them out with --web")
    for target in targets:
        if not Path(target).exists() and looks_like_address(target):
            raise ConfigError(f"--web reads the folder of a run; {target} is an address: give the run's folder")
    watch_web([Path(target) for target in targets], wanted, console, lambda folder: decoder(folder, console))

"""`spag-ray watch RUN... --web`: a live view of runs on a page, which serve/live.py makes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from cluster.commands.report import decoder
from cluster.serve.guard import Guard
from cluster.serve.live import live_runs, make_live_app
from cluster.serve.server import Page, bound, serve_app, token_for
from spag_ray.errors import ConfigError, InputError
from spag_ray.host.addresses import looks_like_address
from spag_ray.results.report.files import read_files


def run_watch_web(targets: Sequence[str], wanted: Page, run: str | None, once: bool, console: Console) -> None:
    """Returns when it is stopped by Ctrl-C or SIGTERM. Raises ConfigError for what a page cannot do, RunFolderError for
    a folder that is no run's, InputError for one that is named twice, and for an address that cannot be had."""
    if once or run is not None:
        raise ConfigError("--once and --run are for the view in the terminal; leave them out with --web")
    for target in targets:
        if not Path(target).exists() and looks_like_address(target):
            raise ConfigError(f"--web reads the folder of a run; {target} is an address: give the run's folder")
    token = token_for(wanted, "show the runs and their games to other machines")
    folders = [Path(target) for target in targets]
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("a run is named twice; name each once")
    for folder in folders:
        read_files(folder)
    runs, curves = live_runs(folders, [decoder(folder, console) for folder in folders])
    app = make_live_app(runs, curves, Guard(token, inline_styles=True))
    with bound(wanted) as listening, contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve_app(app, wanted, listening, token, console))
    console.print("stopped")

"""`spag-ray watch RUN... --web`: binds the address, and serves the live page until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from cluster.serve.guard import Guard
from cluster.serve.live import live_runs, make_live_app
from cluster.serve.server import address_of, bound, serve_app
from spag_ray.errors import ConfigError, InputError
from spag_ray.host.addresses import is_loopback
from spag_ray.results.report.files import read_files
from spag_ray.results.report.tokens import Decode


@dataclass(frozen=True)
class PageWanted:
    """The arguments of `--web`."""

    host: str = "127.0.0.1"
    port: int = 8401
    allow_network: bool = False
    opens_browser: bool = True


def watch_web(
    folders: Sequence[Path], wanted: PageWanted, console: Console, decoder: Callable[[Path], Decode | None]
) -> None:
    """`decoder`: finds the tokenizer of a run. Returns when it is stopped by Ctrl-C or SIGTERM. Raises RunFolderError
    for a folder that is no run's, InputError for one that is named twice, and for an address that cannot be had."""
    if not is_loopback(wanted.host) and not wanted.allow_network:
        raise ConfigError(
            f"--host {wanted.host} would show the runs and their games to other machines; if you want that, add "
            "--allow-network: a token is then needed"
        )
    if len({folder.resolve() for folder in folders}) < len(folders):
        raise InputError("a run is named twice; name each once")
    for folder in folders:
        read_files(folder)
    runs, curves = live_runs(folders, [decoder(folder) for folder in folders])
    token = None if is_loopback(wanted.host) else secrets.token_urlsafe(24)
    app = make_live_app(runs, curves, Guard(token, inline_styles=True))
    with bound(wanted.host, wanted.port) as listening, contextlib.suppress(KeyboardInterrupt):
        address = address_of(wanted.host, listening, token)
        asyncio.run(serve_app(app, listening, address, console, wanted.opens_browser))
    console.print("stopped")

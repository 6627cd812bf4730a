"""`spag-ray serve`: reads what is to be served, binds the address, and serves until it is stopped."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import sys
import threading
import webbrowser
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from rich.console import Console
from starlette.types import ASGIApp

from actors.models import resolve_model
from cluster.checks.preflight import check_words
from cluster.launch.placed_run import cards_of, rules_of, training_words, words_of_file
from cluster.monitor.terminal import say
from cluster.serve.app import make_app
from cluster.serve.guard import Connection, Guard
from cluster.serve.kept_games import keeping
from cluster.serve.opponents import Opponent, Opponents, opponents_of_run
from cluster.serve.visits import Table, Visits
from spag_ray.config.loading import load_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, InputError, meant
from spag_ray.games.registry import game_of
from spag_ray.host.addresses import is_loopback
from spag_ray.results.game_names import names_of


@dataclass(frozen=True)
class Page:
    """Where a page is to be, and who may open it."""

    host: str = "127.0.0.1"
    port: int = 0
    allow_network: bool = False
    opens_browser: bool = True


@dataclass(frozen=True)
class ServeWanted:
    """The arguments of `spag-ray serve`."""

    target: str
    config: str | None
    overrides: Sequence[str]
    page: Page
    stage: str | None = None
    game: str | None = None
    words: Path | None = None
    keep: Path | None = None
    engine: str = "transformers"


def run_serve(wanted: ServeWanted, console: Console) -> None:
    """`spag-ray serve`: returns when it is stopped by Ctrl-C or SIGTERM. Raises SpagError before it serves."""
    page = wanted.page
    token = token_for(page, "let other machines play and use this one's processors")
    title, config, named = _served(wanted)
    table = _table(config, wanted.words)
    with keeping(wanted.keep) as kept, bound(page) as listening:
        opponents = Opponents(config, named, wanted.engine)
        visits = Visits(table, opponents, keeps=kept is not None)
        app = make_app(title, visits, opponents, kept, Guard(token))

        async def serve() -> None:
            try:
                newest = next(reversed(named))
                say(console, f"loading {newest}")
                async with opponents.asked(newest):
                    pass
                if token is not None:
                    told = "other machines can reach this server; give its address only to those who may play"
                    say(console, f"warning: {told}")
                await serve_app(app, page, listening, token, console)
                visits.close()
            finally:
                await opponents.close()

        with contextlib.suppress(KeyboardInterrupt):  # while the first model is loaded, or a second time
            asyncio.run(serve())
        console.print("stopped")


def token_for(page: Page, would: str) -> str | None:
    """A new token; None on loopback, where none is needed. Raises ConfigError beyond it, unless the user allows it:
    `would` says what others could do then."""
    if is_loopback(page.host):
        return None
    if not page.allow_network:
        raise ConfigError(
            f"--host {page.host} would {would}; if you want that, add --allow-network: a token is then needed"
        )
    return secrets.token_urlsafe(24)


async def serve_app(app: ASGIApp, page: Page, listening: socket.socket, token: str | None, console: Console) -> None:
    """Serves until Ctrl-C or SIGTERM; shows the page in a browser where there is a screen."""
    address = _address(page.host, listening, token)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    server = StoppableServer(web_settings(app))
    with server.capture_signals():  # before the line that says it serves: who reads it may stop it at once
        say(console, f"serving {address}", highlight=False)
        sys.stdout.flush()
        if page.opens_browser and (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
            open_browser(address)
        await server.serve(sockets=[listening])


def open_browser(address: str) -> None:
    """Not awaited, and in a daemon thread: a browser of the terminal returns only when it is closed, and waits for a
    page that is not served before."""
    threading.Thread(target=webbrowser.open, args=(address,), name="browser", daemon=True).start()


def web_settings(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        http=Connection,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=2,
    )


class StoppableServer(uvicorn.Server):
    """uvicorn raises a signal again after it has stopped: SIGTERM would then end this process, and Ctrl-C cancel the
    task, before the models are closed and the kept games' folder is released."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        before = {each: signal.signal(each, self.handle_exit) for each in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for each, handler in before.items():
                signal.signal(each, handler)


def _served(wanted: ServeWanted) -> tuple[str, RunConfig, dict[str, Opponent]]:
    """(title, configuration, models) of a run's folder with all its stages, one stage's model inside of it, or any
    model's folder."""
    folder = Path(os.path.expanduser(wanted.target))
    stage = wanted.stage
    is_of_run = folder.parent.name == "models" and (folder.parent.parent / "config.yaml").is_file()
    if is_of_run and stage is None:
        folder, stage = folder.parent.parent, folder.name
    if not (folder / "config.yaml").is_file():
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise InputError(
                f"{folder}: neither a run (it has no config.yaml) nor a model in transformers' format (no config.json)"
            )
        if stage is not None:
            raise InputError(f"--stage {stage}: {wanted.target} is a model, not the folder of a run")
        model = resolve_model(wanted.target)
        name = Path(model).name
        config = load_config(wanted.config or "quickstart", wanted.overrides).of_game(wanted.game)
        return name, config, {name: Opponent(model)}
    if wanted.config is not None:
        raise ConfigError(f"{wanted.target} is of a run, which has its own configuration; leave out --config")
    config = load_config(str(folder / "config.yaml"), wanted.overrides).of_game(wanted.game)
    found = opponents_of_run(folder, config)
    if stage is not None:
        if stage not in found:
            told = f"--stage {stage}: {folder} has no such stage; it has {', '.join(found)}"
            raise InputError(told + meant(stage, found))
        found[stage] = found.pop(stage)  # the last one is chosen on the page
    return folder.resolve().name, config, found


def _table(config: RunConfig, words: Path | None) -> Table:
    """The words given out are the configuration's held-out ones, which no stage was trained on, or those of a file."""
    game = game_of(config)
    if words is not None:
        scenarios = words_of_file(config, words)[config.game.full_name]
    else:
        trained, held_out = training_words(config, cards_of(config))
        scenarios = held_out or trained
    check_words(config, {config.game.full_name: scenarios})
    return Table(rules_of(config), names_of(config, game), scenarios)


@contextlib.contextmanager
def bound(page: Page) -> Iterator[socket.socket]:
    """A listening socket. Raises InputError if the address cannot be had."""
    try:
        family, kind, _, _, place = socket.getaddrinfo(page.host, page.port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind(place)
        listening.listen(64)
    except (OSError, OverflowError, UnicodeError) as error:  # the last of a name that no host can have
        reason = getattr(error, "strerror", None) or str(error)
        raise InputError(
            f"--port {page.port} on {page.host}: {reason}; choose another, or 0 for any free one"
        ) from error
    with listening:
        yield listening


def _address(host: str, listening: socket.socket, token: str | None) -> str:
    """What a person opens."""
    name = socket.gethostname() if host in ("0.0.0.0", "::") else host
    port = listening.getsockname()[1]
    shown = f"[{name}]" if ":" in name else name
    return f"http://{shown}:{port}/" + ("" if token is None else f"?token={token}")

"""The arguments of `spag-ray serve`. Imports no web server before it runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer
from rich.console import Console


def serve(
    target: Annotated[str, typer.Argument(help="a run's folder, a model folder, or `smollm2-135m-instruct`")],
    stage: Annotated[str | None, typer.Option(help="the stage of the run that the page proposes")] = None,
    config: Annotated[str, typer.Option(help="of a model: configuration with the game and the prompts")] = "quickstart",
    game: Annotated[str | None, typer.Option(help="which one, if the run has several games")] = None,
    words: Annotated[Path | None, typer.Option(help="words or scenarios to give out (default: held-out ones)")] = None,
    keep: Annotated[Path | None, typer.Option(help="folder for games that a person agrees to keep")] = None,
    engine: Annotated[Literal["transformers", "vllm"], typer.Option(help="what plays")] = "transformers",
    host: Annotated[str, typer.Option(help="beyond loopback, it needs --allow-network")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0: any free one")] = 8400,
    allow_network: Annotated[bool, typer.Option("--allow-network", help="others may play, with a token")] = False,
    no_browser: Annotated[bool, typer.Option("--no-browser", help="do not open the page")] = False,
    override: Annotated[
        list[str] | None, typer.Option("-o", help="override a key: -o evaluation.temperature=1")
    ] = None,
) -> None:
    """Play against a model on a page in the browser; see docs/serve.md."""
    from cluster.serve.server import ServeWanted, run_serve

    wanted = ServeWanted(
        target,
        config,
        override or (),
        stage=stage,
        game=game,
        words=words,
        keep=keep,
        engine=engine,
        host=host,
        port=port,
        allow_network=allow_network,
        opens_browser=not no_browser,
    )
    run_serve(wanted, Console())

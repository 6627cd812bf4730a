"""`spag-ray game`: checks a game, or writes the files of a new one (cluster/checks/own_game.py)."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Check a game of your own, or begin a new one; see docs/games.md.")


@app.command("check")
def check_game(
    name: Annotated[str, typer.Argument(help="FILE.py:CLASS, or any other name that game.name takes")],
    games: Annotated[int, typer.Option(min=1, help="games to play")] = 200,
) -> None:
    """Play a game and print every promise of the protocol that it breaks; exit code 1 if there is any."""
    from cluster.checks.own_game import run_check

    if not run_check(name, games, Console()):
        raise typer.Exit(1)


@app.command("new")
def new_game(
    name: Annotated[str, typer.Argument(help="its module's name, such as my_game; the class is then MyGame")],
    out: Annotated[Path, typer.Option(help="folder of both files")] = Path("."),
) -> None:
    """Write NAME.py, a small game that plays, and test_NAME.py; nothing is overwritten."""
    from cluster.checks.own_game import run_new

    run_new(name, out, Console())

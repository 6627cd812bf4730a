"""`spag-ray game`: checks a game of the user, naming a remedy for each fault, or writes the files of a new one.

Imports no game before it is asked.
"""

from __future__ import annotations

import importlib.util
import keyword
import re
import shlex
import string
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from spag_ray.errors import InputError
from spag_ray.host.whole_files import refuse_existing, write_atomically

app = typer.Typer(no_args_is_help=True, help="Check a game of your own, or begin a new one; see docs/games.md.")
# Of each kind of fault (conformance.py, game_form.py), by the whole name or its last word.
REMEDIES = {
    "form": "return what the table in docs/games.md says",
    "scenarios": "let `scenarios` return a list of different texts, none of them empty",
    "split": "add scenarios or take one out, or set is_exhaustive if they are all that can happen",
    "once": "let __init__ need nothing that is gone after the first time: every process makes the game anew",
    "changes": "copy the history before you change it",
    **dict.fromkeys(("scenarios raises", "hidden raises", "fact raises"), "mend that line"),
    "raises": "answer any text: a model says what it likes, and `rule` can end the game with breach(seat)",
    "varies": "keep nothing between calls, and draw nothing at random but from the `rng` of `scripted`",
    "leak": "leave it out of the messages of this seat",
    "unread": "let `hidden` give the texts that `messages` has, word by word",
    "waits": "let `to_move` give each seat its turns, and `rule` end the game",
    "no ruling": "return win(...), breach(...) or tie(...), and None while the game goes on",
    "breaker": "call breach with the seat of the last turn",
    "end reason": "give a word or two that name this kind of end",
    "reason": "give a text, or leave it out",
    "span": "give (start, end) in the characters of the last turn, or leave it out",
    "payoffs": "give two numbers from -2 to 2, or None for a seat that is not trained on this end",
    "winner": "pay the winner more, or let the other seat win",
    "breach": "pay the seat that broke the rules less",
}
_NAME = re.compile(r"[a-z][a-z0-9_]*")


@app.command("check")
def check_game(
    name: Annotated[str, typer.Argument(help="FILE.py:CLASS, or any other name that game.name takes")],
    games: Annotated[int, typer.Option(min=1, help="games to play")] = 200,
) -> None:
    """Play a game and print every promise of the protocol that it breaks; exit code 1 if there is any."""
    from spag_ray.game.conformance import examine
    from spag_ray.game.protocol import Hides, Scripted
    from spag_ray.games.registry import game_maker

    console = Console()

    def say(line: str) -> None:
        console.print(Text(line), soft_wrap=True)

    make = game_maker(name)
    game = make()
    report = examine(make, games)
    if report.num_games:
        say(f"{name}: {game.seats[0]} and {game.seats[1]}, at most {game.max_turns} turns each")
        share = "exhaustive" if game.is_exhaustive else "some to hold out"
        say(f"{_counted(report.num_scenarios, 'scenario')}, {share}")
        say(f"{_counted(report.num_games, 'game')} of scripted, random and hostile replies")
        say(f"{report.num_questions:,} questions, each asked again: at once, of a new instance, and after all games")
        if not isinstance(game, Hides):
            say("not checked: what a seat must not read; name it in a method `hidden`")
        if not isinstance(game, Scripted):
            say("not checked: scripted seats; without a method `scripted` there is nothing to imitate")
    for number, (kind, fault) in enumerate(report.faults.items(), 1):
        say(f"{number}. {fault}")
        say(f"   remedy: {remedy(kind)}")
    say(_counted(len(report.faults), "fault") if report.faults else "no fault found")
    if report.faults:
        raise typer.Exit(1)


@app.command("new")
def new_game(
    name: Annotated[str, typer.Argument(help="its module's name, such as my_game; the class is then MyGame")],
    out: Annotated[Path, typer.Option(help="folder of both files")] = Path("."),
) -> None:
    """Write NAME.py, a small game that plays, and test_NAME.py; nothing is overwritten."""
    console = Console()
    _check_name(name)
    names = {"module": name, "name": "".join(part.capitalize() for part in name.split("_"))}
    game, test = out / f"{name}.py", out / f"test_{name}.py"
    for path in (game, test):
        refuse_existing(path)
    texts = [
        Path(__file__).with_name(each).read_text(encoding="utf-8") for each in ("new_game.txt", "new_game_test.txt")
    ]
    try:
        out.mkdir(parents=True, exist_ok=True)
        for path, text in zip((game, test), texts, strict=True):
            write_atomically(path, string.Template(text).substitute(names))
    except OSError as error:
        raise InputError(f"{out}: no game can be written there: {error.strerror}; choose another --out") from error
    console.print(Text(f"{game}: {names['name']}, a game that plays; {test} tests it"), soft_wrap=True)
    for command in _next_commands(name, shlex.quote(f"{game}:{names['name']}")):
        console.print(Text(f"  {command}"), soft_wrap=True)


def _counted(count: int, what: str) -> str:
    return f"{count} {what}{'s' * (count != 1)}"


def remedy(kind: str) -> str:
    """What to do about a fault of this kind: "messages raises", "leak 0", "payoffs"."""
    words = [word for word in kind.split() if not word.isdigit()]
    return REMEDIES.get(" ".join(words)) or REMEDIES[words[-1]]


def _check_name(name: str) -> None:
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name.startswith("test"):
        raise InputError(f"{name!r} cannot name a game's file: small letters, digits and _, such as my_game")
    if importlib.util.find_spec(name) is not None:
        raise InputError(f"{name} is the name of another module, which its test would import; choose another")


def _next_commands(name: str, game: str) -> list[str]:
    """Check it, train it by a shipped configuration for what this machine has, and play against it."""
    from cluster.checks.vllm_build import gpu_build

    settings = "own_game_1gpu -o model=MODEL_FOLDER" if gpu_build() else "kuhn"
    return [
        f"spag-ray game check {game}",
        f"spag-ray train {settings} -o name={name} -o game.name={game} --run-dir runs/{name}",
        f"spag-ray serve runs/{name}",
    ]

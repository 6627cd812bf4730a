"""`spag-ray game check` names each fault with a remedy; `spag-ray game new` writes a game that plays, and its test."""

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cluster.cli import app
from cluster.commands.game import remedy
from cluster.guarded import run_guarded

ROOT = Path(__file__).resolve().parents[3]
DUEL = f"{ROOT}/docs/examples/number_duel.py:NumberDuel"
FAULTY = """
from spag_ray.games.kuhn import KuhnPoker


class Talks(KuhnPoker):
    \"\"\"It tells a seat what is hidden from it, and counts its calls.\"\"\"

    calls = 0

    def messages(self, seat, history, scenario):
        told = super().messages(seat, history, scenario)
        return [{**told[0], "content": told[0]["content"] + " " + " ".join(self.hidden(seat, scenario))}, *told[1:]]

    def rule(self, history, scenario):
        type(self).calls += 1
        return super().rule(history, scenario) if self.calls % 2 else None


class Trio(KuhnPoker):
    seats = "one", "two", "three"


class Spoken(KuhnPoker):
    def line_start(self, seat):
        return None


class Leaves(KuhnPoker):
    def scenarios(self):
        raise SystemExit(3)


class Picky(KuhnPoker):
    def __init__(self, deck):
        self.deck = deck
"""


@pytest.fixture
def call(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., str]:
    """Runs a command in an empty folder; what it prints, on both streams."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "faulty.py").write_text(FAULTY)

    def run(*arguments: str, code: int = 0) -> str:
        def command(**options: Any) -> None:
            app(list(arguments), **options)

        assert run_guarded(command) == code
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return out + err

    return run


@pytest.mark.parametrize("name", ["kuhn", DUEL])
def test_a_sound_game_is_told_what_was_checked(name: str, call: Callable[..., str]) -> None:
    said = call("game", "check", name, "--games", "20")
    assert said.endswith("no fault found\n")
    assert "\n20 games of scripted, random and hostile replies\n" in said
    assert re.search(r"^[\d,]+ questions, each asked again", said, re.MULTILINE)
    assert "not checked" not in said


def test_every_fault_has_a_remedy_and_the_exit_code_is_1(call: Callable[..., str]) -> None:
    said = call("game", "check", "faulty.py:Talks", "--games", "20", code=1)
    assert "rule gives another answer when it is asked again" in said
    assert "remedy: keep nothing between calls" in said
    assert "which is hidden from it" in said
    assert "remedy: leave it out of the messages of this seat" in said
    assert said.count("remedy: ") == int(said.splitlines()[-1].removesuffix(" faults"))
    said = call("game", "check", "faulty.py:Trio", code=1)
    assert said.splitlines()[0] == "1. it has 3 seats; only games of two seats are played"
    assert said.endswith("1 fault\n")
    said = call("game", "check", "faulty.py:Spoken", code=1)
    assert "line_start returns [None, None] for the two seats; return a text for each" in said
    said = call("game", "check", "faulty.py:Leaves", code=1)
    assert re.search(r"scenarios raises SystemExit: 3 in faulty\.py, line \d+\n   remedy: mend that line", said)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("faulty.py:Talk", "did you mean `Talks`?"),
        ("fautly.py:Talks", "did you mean `faulty.py`?"),
        ("faulty.py:Picky", "it cannot be made without arguments"),
        ("khun", "did you mean `kuhn`?"),
        ("textarena", "Write textarena:ENV"),
        ("faulty.py", "or name your own as faulty.py:MyGame"),
    ],
)
def test_a_name_that_is_no_games_is_bad_input(name: str, told: str, call: Callable[..., str]) -> None:
    said = call("game", "check", name, code=2)
    assert told in said
    assert said.count("\n") == 1


def test_there_is_a_remedy_for_every_kind_of_fault() -> None:
    source = "".join((ROOT / "spag_ray" / "game" / name).read_text() for name in ("conformance.py", "game_form.py"))
    kinds = set(re.findall(r'(?:setdefault\(\s*|Report\(\{)f?"([^"]+)"|yield "([^"]+)", ', source))
    named = {re.sub(r"\{.*?\}", "0", first or second) for first, second in kinds}
    assert {"0 raises", "0 varies", "leak 0", "split", "payoffs", "form"} < named
    for kind in named:
        assert remedy(kind)


def test_a_new_game_conforms_and_its_own_test_passes(call: Callable[..., str], tmp_path: Path) -> None:
    said = call("game", "new", "card_bluff", "--out", "games")
    game = "games/card_bluff.py:CardBluff"
    assert [line.split()[1] for line in said.splitlines()[1:]] == ["game", "train", "serve"]
    for line in said.splitlines()[1:3]:
        assert game in line
    assert "no fault found" in call("game", "check", game)
    assert not list(tmp_path.glob("games/*.txt"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"],
        cwd=tmp_path / "games",
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert re.search(r"^8 passed", done.stdout, re.MULTILINE), done.stdout
    ruff = [sys.executable, "-m", "ruff"]
    for command in (["check"], ["format", "--check"]):
        subprocess.run([*ruff, *command, "--config", str(ROOT / "pyproject.toml"), "games"], check=True)


@pytest.mark.parametrize("config", ["kuhn", "own_game_1gpu"])
def test_a_new_game_can_be_trained_by_a_shipped_configuration(config: str, call: Callable[..., str]) -> None:
    call("game", "new", "card_bluff")
    options = ["-o", "name=card_bluff", "-o", "game.name=card_bluff.py:CardBluff", "-o", "model=smollm2-135m-instruct"]
    said = call("train", config, *options, "--dry-run")
    assert "plan of card_bluff" in said
    assert said.endswith("Not checked: model smollm2-135m-instruct.\n"), "the game is checked"


def test_nothing_is_overwritten(call: Callable[..., str], tmp_path: Path) -> None:
    (tmp_path / "test_own.py").write_text("mine")
    assert "test_own.py exists; nothing is overwritten" in call("game", "new", "own", code=2)
    assert (tmp_path / "test_own.py").read_text() == "mine"
    assert not (tmp_path / "own.py").exists()


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("My-Game", "cannot name a game's file"),
        ("class", "cannot name a game's file"),
        ("test_me", "cannot name a game's file"),
        ("../up", "cannot name a game's file"),
        ("random", "is the name of another module"),
    ],
)
def test_a_name_no_module_can_have_is_refused(name: str, told: str, call: Callable[..., str], tmp_path: Path) -> None:
    assert told in call("game", "new", name, code=2)
    assert [path.name for path in tmp_path.iterdir()] == ["faulty.py"]

"""The rules that arenas get: Taboo's settings, or a game, whose class travels with its code if it is a user's file."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from cluster.launch.placed_run import rules_of
from spag_ray.config.loading import load_config, parse_config
from spag_ray.games.kuhn import KuhnPoker
from spag_ray.games.taboo.game import TabooGame

OWN = """
from spag_ray.games.kuhn import KuhnPoker

SEATS = ("mine", "yours")


class Mine(KuhnPoker):
    seats = SEATS
    max_turns = 3

    def scripted(self, seat, history, scenario, rng):
        return SEATS[seat]
"""
DUEL = """
from . import cards
from .cards import Cards, SEATS


class Duel(Cards):
    seats = SEATS

    def scripted(self, seat, history, scenario, rng):
        return cards.name(seat)
"""
CARDS = """
from enum import Enum

from spag_ray.games.kuhn import KuhnPoker

SEATS = ("mine", "yours")


class Seat(Enum):
    FIRST, SECOND = SEATS


class Cards(KuhnPoker):
    pass


def name(seat):
    return list(Seat)[seat].value
"""
READS = "import pickle, sys; print(pickle.load(sys.stdin.buffer).game.scripted(1, [], '', None))"


def test_taboo_has_its_settings() -> None:
    rules = rules_of(load_config("quickstart", ["game.max_turns=3", "game.rules=published"]))
    assert (rules.max_turns, rules.variant, rules.name, rules.style) == (3, "published", "taboo", "lines")
    assert isinstance(rules.game, TabooGame)


def test_another_game_has_its_own_turns_and_no_referee() -> None:
    rules = rules_of(load_config("kuhn"))
    assert (rules.max_turns, rules.variant, rules.name, rules.style) == (2, "", "kuhn", "lines")
    assert isinstance(rules.game, KuhnPoker)


def test_a_class_of_a_users_file_is_read_where_the_file_is_not(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text(OWN)
    rules = rules_of(parse_config({"game": {"name": "mine.py:Mine"}, "prompts": "chat"}))
    assert (rules.max_turns, rules.name, rules.style) == (3, "mine.py:Mine", "chat")
    sent = ray.cloudpickle.dumps(rules)
    Path("mine.py").unlink()
    assert read_elsewhere(sent) == b"yours\n"


def test_a_class_of_a_users_package_is_sent_with_its_imports(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("duels").mkdir()
    for name, text in (("__init__", ""), ("duel", DUEL), ("cards", CARDS)):
        Path(f"duels/{name}.py").write_text(text)
    sent = ray.cloudpickle.dumps(rules_of(parse_config({"game": {"name": "duels.duel:Duel"}, "prompts": "chat"})))
    shutil.rmtree("duels")
    assert read_elsewhere(sent) == b"yours\n"


def read_elsewhere(sent: bytes) -> bytes:
    """What a process that has no file of the game reads."""
    folder = {"cwd": Path(__file__).resolve().parents[3], "capture_output": True, "check": True}
    found = subprocess.run([sys.executable, "-c", READS], input=sent, **folder)  # type: ignore[call-overload]
    return bytes(found.stdout)

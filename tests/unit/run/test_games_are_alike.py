"""No code asks which game is played, or whether a run has only one: it asks for what it needs of a game."""

import re
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FLOORS = ("spag_ray", "cluster", "actors", "learners")
MAY_ASK = ("spag_ray/games/taboo/", "spag_ray/config/")  # Taboo itself, and the keys that only it has
# What people read names the game only if there are several: one helper decides it.
HELPER = re.compile(r"^(def told_apart|def names_of_all).*?^(?=\S)", re.MULTILINE | re.DOTALL)
BRANCH = re.compile(
    r"is_taboo|isTaboo"
    r"|[=!]= TABOO"
    r"|\bgame(?:_of\([^()]*\)\))? is (?:not )?None"  # None for Taboo, or for the only game
    r"|None: \w*NAMES"
    r"|\b(?:if|else|not|and|or) (?:\w+\.)*\w*config\.games\b(?!\w)(?! if)"
    r"|\blen\((?:\w+\.)*_?(?:games|game_names|each_game)\) *(?:==|!=|>|<|>=|<=) *[12]\b"
)


def branches(text: str) -> list[str]:
    return [found[0] for found in BRANCH.finditer(HELPER.sub("", text))]


def test_no_code_outside_taboo_and_its_configuration_branches_on_a_game() -> None:
    found: Counter[str] = Counter()
    for floor in FLOORS:
        for path in (ROOT / floor).rglob("*.py"):
            name = path.relative_to(ROOT).as_posix()
            if not name.startswith(MAY_ASK) and (asked := branches(path.read_text(encoding="utf-8"))):
                found[name] = len(asked)
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "if config.game.is_taboo:", '"isTaboo": table.rules.game is None,',
        "if (game := game_of(config)) is not None:", "name = each.full_name if game is None else game",
        "shares = [] if config.games else [1.0]", "if not self._config.games:", "several = len(self._games) > 1",
        "if len(config.game_names) == 1:", "games = games or {None: TABOO_NAMES}",
        "self.explains_itself = rules.name == TABOO",
    ],
)  # fmt: skip
def test_a_branch_is_found(line: str) -> None:
    assert branches(f"def f():\n    {line}\n")


@pytest.mark.parametrize(
    "line",
    [
        "for game in config.games:",
        "kept = [word for game in config.games if game.has_cards for word in held_out[game.full_name]]",
        "if game.guesses:",
        "while len(self._games) <= place:",
        "def told_apart(games, text):\n    return text if len(games) > 1 else ''",
    ],
)
def test_a_question_about_what_a_game_can_do_is_none(line: str) -> None:
    assert not branches(f"{line}\nother = 1\n")

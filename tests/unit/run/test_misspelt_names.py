"""Unknown names suggest the closest match, wherever a name is looked up; a plan without files does so, too."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from actors.models import resolve_model
from cluster.planning.plan_checks import check_plan
from cluster.run.run import last_episodes
from cluster.schedules.tournament import Entrant, check_entrants
from spag_ray.channels.base import known_or_auto
from spag_ray.config.loading import load_config, parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import SpagError, meant, nearest, nearest_path
from spag_ray.games.registry import load_game
from spag_ray.games.taboo.decks import load_deck
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.results.report.files import read_files
from spag_ray.training_data.prompt_randomization import load_varied
from tests.support.not_here import needs_textarena

MINE = """
from spag_ray.games.kuhn import KuhnPoker


class Mine(KuhnPoker):
    seats = "one", "two"
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with a game, a configuration, prompts, and a folder of a run."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "card_game.py").write_text(MINE)
    (tmp_path / "my_cards.yaml").write_text("name: mine\n")
    (tmp_path / "runs" / "winter").mkdir(parents=True)
    return tmp_path


LOOK_UPS: dict[str, tuple[Callable[[], Any], str]] = {
    "a configuration": (lambda: load_config("quikstart"), "`quickstart`"),
    "a configuration's path": (lambda: load_config("configs/two_gams.yaml"), "`two_games`"),
    "a configuration of one's own": (lambda: load_config("my_crads.yaml"), "`my_cards.yaml`"),
    "prompts": (lambda: load_template("lnies"), "`lines`"),
    "varied prompts": (lambda: load_varied("vareid"), "`varied`"),
    "a deck": (lambda: load_deck("everday"), "`everyday`"),
    "a game": (lambda: load_game("khun"), "`kuhn`"),
    "another kind of game": (lambda: load_game("textarna"), "`textarena`"),
    "a game's class": (lambda: load_game("card_game.py:Mime"), "`Mine`"),
    "a game's file": (lambda: load_game("crad_game.py:Mine"), "`card_game.py`"),
    "a game's module": (lambda: load_game("card_gam:Mine"), "`card_game.py`"),
    "a channel": (lambda: known_or_auto("shared-memory"), "`shared_memory`"),
    "a model": (lambda: resolve_model("smollm2-135m"), "`smollm2-135m-instruct`"),
    "a player's model": (lambda: Entrant.parse("expert=scritped"), "`scripted`"),
    "an outcome": (lambda: last_episodes(Path("runs/winter"), 1, "attacker win", None), "`attacker wins`"),
    "a player": (lambda: check_entrants([Entrant("spag-1"), Entrant("base")], "spag1"), "`spag-1`"),
    "one of several games": (lambda: load_config("two_games").of_game("Taboo"), "`taboo`"),
    "a run": (lambda: read_files(Path("runs/wintr")), "`runs/winter`"),
}


@pytest.mark.parametrize("kind", LOOK_UPS)
def test_a_misspelt_name_is_answered_with_the_nearest_one(kind: str, folder: Path) -> None:
    look_up, named = LOOK_UPS[kind]
    with pytest.raises((SpagError, ValueError)) as caught:
        look_up()
    assert str(caught.value).endswith(f"; did you mean {named}?")


def test_a_misspelt_environment_of_textarena_is_answered_with_the_nearest_one() -> None:
    needs_textarena()
    with pytest.raises(SpagError, match=r"did you mean `SimpleNegotiation-v0`\?$"):
        load_game("textarena:SimpleNegotation-v0")
    with pytest.raises(SpagError, match=r"did you mean `TicTacToe-v0`\?$"):
        check_plan(of_a_game(name="textarena", env="tictactoe"))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"game": {"name": "khun"}}, "kuhn"),
        ({"game": {"name": "card_game.py:Mien"}}, "Mine"),
        ({"prompts": "line", "game": {"name": "taboo"}}, "lines"),
        ({"words": {"deck": "everiday"}, "game": {"name": "taboo"}}, "everyday"),
        ({"learner": {"deepspeed": "zero3_ofload"}}, "zero3_offload"),
    ],
)
def test_a_plan_without_files_suggests_the_nearest_name(changes: dict[str, Any], named: str, folder: Path) -> None:
    with pytest.raises(SpagError, match=rf"did you mean `{named}`\?$"):
        check_plan(parse_config({"prompts": "lines", "imitation": {"enabled": False}, **changes}))


def of_a_game(**game: str) -> RunConfig:
    return parse_config({"game": game, "prompts": "lines", "imitation": {"enabled": False}})


def test_a_plan_says_what_a_path_may_mean_that_it_does_not_check(folder: Path) -> None:
    """It may be a path of another machine, so it is not refused."""
    assert "game.name card_gmae.py:Mine (did you mean `card_game.py`?)" in check_plan(
        of_a_game(name="card_gmae.py:Mine")
    )
    config = of_a_game(name="card_game.py:Mine").model_copy(update={"model": "smollm2-135m-instuct"})
    assert check_plan(config) == ["model smollm2-135m-instuct (did you mean `smollm2-135m-instruct`?)"]


def test_a_plan_checks_the_room_of_a_game_whose_file_is_here(folder: Path) -> None:
    short = of_a_game(name="card_game.py:Mine").model_dump() | {"engine": {"max_model_len": 256}}
    with pytest.raises(SpagError, match=r"4 turns of sampling\.max_new_tokens 128 take"):
        check_plan(parse_config(short))


def test_a_name_like_no_other_gets_no_suggestion() -> None:
    assert meant("chess", ["taboo", "kuhn"]) == ""
    assert nearest("chess", ["taboo", "kuhn"], cutoff=0.0) in ("taboo", "kuhn")
    assert nearest("chess", []) is None
    assert nearest_path("/no/such/folder/at/all") is None
    assert nearest_path("a\0b/c") is None


def test_a_path_may_mean_what_is_beside_it_of_the_same_kind(folder: Path) -> None:
    assert nearest_path("my_crads.yaml") == "my_cards.yaml"
    assert nearest_path("my_crads.json") is None
    assert nearest_path("runs/wintre") == "runs/winter"
    assert nearest_path("Qwen2.5-135M-Instruct", ["smollm2-135m-instruct"]) == "smollm2-135m-instruct"
    assert nearest_path("/models/Qwen2.5-135M-Instruct", ["smollm2-135m-instruct"]) is None, "it is no bare name"
    assert nearest_path("card_game.py") is None, "it is there"
    assert nearest_path("cars.py") is None, "`.py` alone makes no likeness"

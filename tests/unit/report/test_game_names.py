"""Names for people: Taboo's are those of the data, other games bring their own, and a lost game has plain ones."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.game_names import (
    FILE,
    GameNames,
    cooperative_note,
    names_of,
    names_of_all,
    payoffs_line,
    read_names_by_game,
    write_names,
)
from spag_ray.results.model_card import BaseModel, write_cards
from tests.support.old_run_folders import placed
from tests.support.report_page import page_of

KUHN = parse_config({"game": {"name": "kuhn"}, "prompts": "lines"})


def playing(name: str) -> RunConfig:
    return parse_config({"game": {"name": name}, "imitation": {"enabled": False}})


def test_taboo_is_shown_as_it_is_stored() -> None:
    names = names_of(RunConfig())
    assert [names.outcome(outcome) for outcome in Outcome] == list(map(str, Outcome))
    assert [names.seat(role) for role in Role] == list(map(str, Role))
    assert (names.scenario, names.held_out, names.guesses) == ("word", "Held-out words", True)
    assert names.max_turns == 5
    assert read_names_by_game(Path(), None) == {"taboo": GameNames()}, "a run whose configuration is lost"


def test_another_game_brings_its_own_names() -> None:
    names = names_of(KUHN)
    assert names == GameNames("kuhn", ("first", "second"), "scenario", False, True, 2)
    assert [names.outcome(outcome) for outcome in Outcome] == [
        "first wins",
        "second wins",
        "first breaks the rules",
        "second breaks the rules",
        "tied game",
    ]


def test_only_policies_of_a_seat_are_renamed() -> None:
    names = names_of(KUHN)
    found = [names.policy(name) for name in ("attacker", "defender@12", "policy", "policy@3", "attackers", "")]
    assert found == ["first", "second@12", "policy", "policy@3", "attackers", ""]


GAME = """
class Auction:
    seats = ("bidder", "caller")
    max_turns = 3
    is_exhaustive = False
    def scenarios(self): return ["red"]
    def messages(self, seat, history, scenario): return []
    def rule(self, history, scenario): return None
"""


def test_a_users_game_is_asked_once_and_then_may_be_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "auction.py").write_text(GAME)
    names = names_of(playing("auction.py:Auction"))
    assert (names.seats, names.held_out, names.max_turns) == (("bidder", "caller"), "Held-out scenarios", 3)
    (tmp_path / "auction.py").unlink()
    gone = names_of(playing("auction.py:Auction"))
    assert (gone.name, gone.seats, gone.max_turns) == ("auction.py:Auction", ("attacker", "defender"), None)
    assert not gone.guesses


@pytest.mark.parametrize(
    "source",
    [
        "raise OSError('no network')",
        "class Auction: seats = ('a', 'b', 'c'); max_turns = 3; is_exhaustive = False",
        GAME.replace('("bidder", "caller")', "(1, 2)"),
        GAME.replace("    seats =", "    @property\n    def seats(self): raise KeyError\n    _ ="),
    ],
)
def test_a_game_that_does_not_load_is_no_error(source: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.py").write_text(source)
    names = names_of(playing("broken.py:Auction"))
    assert names == GameNames("broken.py:Auction", scenario="scenario", guesses=False)


def test_a_reader_of_a_run_folder_never_runs_a_users_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config = playing("auction.py:Auction")
    (tmp_path / "auction.py").write_text(GAME)
    write_names(tmp_path, config)
    (tmp_path / "auction.py").write_text("raise SystemExit('a reader ran it')")
    names = names_of_all(read_names_by_game(tmp_path, config))
    assert (names.seats, names.held_out, names.max_turns) == (("bidder", "caller"), "Held-out scenarios", 3)
    plain = GameNames("auction.py:Auction", scenario="scenario", guesses=False)
    for text in ("{", "[]", '{"seats": ["a"]}', '{"seats": 3, "is_exhaustive": 1, "max_turns": 1}', "null"):
        (tmp_path / FILE).write_text(text)
        assert names_of_all(read_names_by_game(tmp_path, config)) == plain
    (tmp_path / FILE).unlink()
    assert names_of_all(read_names_by_game(tmp_path, config)) == plain
    assert names_of_all(read_names_by_game(tmp_path, KUHN)) == names_of(KUHN)
    write_names(tmp_path, KUHN)
    assert not (tmp_path / FILE).exists(), "a shipped game is asked for its names"


def test_several_games_have_own_names_and_names_that_fit_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("auction.py").write_text(GAME)
    games = [{"name": name, "share": share} for name, share in (("taboo", 0.5), ("auction.py:Auction", 0.5))]
    config = parse_config({"games": games, "imitation": {"enabled": False}})
    write_names(tmp_path, config)
    Path("auction.py").unlink()
    found = read_names_by_game(tmp_path, config)
    assert list(found) == ["taboo", "auction.py:Auction"]
    assert found["taboo"] == GameNames(max_turns=5)
    assert found["auction.py:Auction"].seats == ("bidder", "caller")
    every = names_of_all(read_names_by_game(tmp_path, config))
    assert (every.name, every.seats) == ("Adversarial Taboo and auction.py:Auction", ("first", "second"))
    assert not every.guesses
    (tmp_path / FILE).unlink()
    assert read_names_by_game(tmp_path, config)["auction.py:Auction"].seats == ("attacker", "defender")


HELPING = {"right_guess": [1, 1], "cooperative": True}
NOTE = "Trained with cooperative payoffs: a right guess paid the attacker at least as much as a tie."


def told(**settings: Any) -> tuple[str | None, str | None]:
    config = parse_config({"objective": {"learn_from": "both"}, **settings})
    return payoffs_line(config), cooperative_note(config)


@pytest.mark.parametrize(
    ("settings", "line", "which"),
    [
        ({}, None, None),
        ({"game": {"payoffs": {"cooperative": True}}}, None, None),
        ({"game": {"payoffs": HELPING}}, "rounds 1 to 3: game.payoffs, cooperative", ""),
        ({"game": {"payoffs": HELPING}, "self_play": {"rounds": 0}}, None, None),
        ({"self_play": {"phases": [{"rounds": 3, "payoffs": HELPING}]}}, "rounds 1 to 3: phase 1, cooperative", ""),
        (
            {"self_play": {"rounds": 5, "phases": [{"rounds": rounds, "payoffs": HELPING} for rounds in (1, 3)]}},
            "round 1: phase 1, cooperative; rounds 2 to 4: phase 2, cooperative; round 5: game.payoffs",
            " (round 1, rounds 2 to 4)",
        ),
        ({"self_play": {"phases": [{"rounds": 1}]}}, "rounds 1 to 3: game.payoffs", None),
        (
            {"self_play": {"phases": [{"rounds": 1, "payoffs": each} for each in (HELPING, {}, HELPING)]}},
            "round 1: phase 1, cooperative; round 2: phase 2; round 3: phase 3, cooperative",
            " (round 1, round 3)",
        ),
        (
            {"game": {"payoffs": {**HELPING, "right_guess": [None, 1]}}},
            None,
            None,
        ),  # nothing trains the attacker to help
    ],
)
def test_rounds_are_told_with_their_payoffs(settings: dict[str, Any], line: str | None, which: str | None) -> None:
    assert told(**settings)[0] == line
    note = told(**settings)[1]
    assert note == (None if which is None else f"{NOTE.replace(':', which + ':', 1)} Scores, ratings and wins count it "
                    "for the defender alone.")  # fmt: skip


def test_the_report_and_the_cards_say_that_payoffs_were_cooperative(tmp_path: Path) -> None:
    run = placed("rounds", tmp_path)
    assert "cooperative payoffs" not in page_of(run).text
    write_cards(run, BaseModel("tiny"))
    card = run / "models" / "spag-2" / "README.md"
    assert "cooperative payoffs" not in card.read_text()
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["game"]["payoffs"] |= HELPING
    settings["objective"] |= {"learn_from": "both", "loser_turns": "all"}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    page = page_of(run)
    assert page.text.count(NOTE) == 2, "at the top, and above the standings"
    assert page.text.index("Standings") < page.text.rindex(NOTE) < page.text.index("% of games, 95% interval")
    write_cards(run, BaseModel("tiny"))
    assert card.read_text().count(NOTE) == 1
    (run / "matches.json").unlink()
    assert page_of(run).text.count(NOTE) == 1

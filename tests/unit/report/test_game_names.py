"""Names for people: Taboo's are those of the data, other games bring their own, and a lost game has plain ones."""

from pathlib import Path

import pytest

from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.game_names import FILE, GameNames, names_of, names_of_all, read_names_by_game, write_names

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

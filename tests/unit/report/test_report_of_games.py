"""The report of another game than Taboo: its own names, what it paid, and nothing of words."""

import math
import re
from dataclasses import replace
from pathlib import Path

import pytest

from spag_ray.config.loading import load_config, parse_config, write_config
from spag_ray.episodes.log import read_log
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.game_names import write_names
from tests.support.kuhn_runs import GAMES, kuhn_game, make_kuhn_run, make_two_games_run, renamed
from tests.support.report_page import Page, page_of
from tests.support.report_runs import HOSTILE, write_log

# Names in a page's styles and data, which people do not read.
OF_DATA = re.compile("--(attacker|defender)(-breach|-soft)?|(attacker|defender)_weight")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return make_kuhn_run(tmp_path / "a-run")


def shown(page: Page) -> str:
    """What people read of the page: its text without its configuration, and its charts."""
    text = page.text[page.text.index("Outcomes") : page.text.index("config.yaml")]
    return text + OF_DATA.sub("", str(list(page.unpacked("figures").values())))


def test_nobody_reads_of_attackers_words_or_referees(run: Path) -> None:
    page = page_of(run)
    text = shown(page)
    assert re.findall(r"attack|defen|guess|trap|known|referee|taboo|held.out|\bwords?\b", text, re.IGNORECASE) == []
    for part in (
        "Self-play of kuhn",
        "game kuhn, up to 2 turns a player",
        "first v second",
        "Scenario",
        "scenario filter",
    ):
        assert part in text, part
    index = page.unpacked("index")
    assert index["seats"] == ["first", "second"]
    assert index["outcomes"][:3] == ["first wins", "second wins", "first breaks the rules"]
    assert (index["scenario"], index["hasReferee"]) == ("scenario", False)
    assert not [link for link in page.links if "known" in link]


def test_a_run_of_taboo_has_the_sections_about_words(tmp_path: Path) -> None:
    folder = make_kuhn_run(tmp_path / "a-run")
    write_config(folder / "config.yaml", parse_config({}))
    renamed(folder, "taboo")
    page = page_of(folder)
    assert "href=#known" in page.links
    for part in ("Self-play of Adversarial Taboo", "referee strict, up to 5 turns", "Held-out words: % of games"):
        assert part in page.text, part


def test_scenarios_are_held_out_unless_the_game_has_no_others(run: Path) -> None:
    assert "All scenarios: % of games" in page_of(run).text
    write_config(run / "config.yaml", parse_config({"game": {"name": "gone:Game"}, "imitation": {"enabled": False}}))
    renamed(run, "gone:Game")
    page = page_of(run)
    assert "Held-out scenarios: % of games" in page.text
    assert "attacker v defender" in page.text, "the names of the data, if the game cannot be asked"
    assert "up to" not in page.text[: page.text.index("Games for training")]
    assert "gone:Game" in page.text


def test_what_games_paid_is_a_mean_by_stage_and_seat(run: Path) -> None:
    page = page_of(run)
    first, second = page.unpacked("figures")["payoffs"]["data"]
    # KJ pays the first seat 1, QK -1, a breach of the second 2, one of its own -2, KQ 2.
    assert (first["x"], first["y"], second["y"]) == (["spag-1"], [0.4], [-0.4])
    assert (first["line"]["color"], second["line"]["color"]) == ("--attacker", "--defender")
    margin = 2.7764 * math.sqrt((14 - 5 * 0.4**2) / 4 / 5)  # Student's, of 4 degrees of freedom
    row = f"+0.400 ± {margin:.3f}-0.400 ± {margin:.3f}5"
    assert f"spag-1{row}eval-spag-1{row}match-spag-1@base{row}" in page.text, "games for training come first"


def test_a_seat_that_was_paid_nothing_has_no_mean(run: Path) -> None:
    (run / "episodes" / "spag-1.log").unlink()
    broken = kuhn_game("spag-1", 0, "QJ", ("pass",))
    write_log(run, "spag-1", [replace(broken, verdict=replace(broken.verdict, payoffs=(-1.0, None)))])
    page = page_of(run)
    assert [trace["y"] for trace in page.unpacked("figures")["payoffs"]["data"]] == [[-1.0], [None]]
    assert "spag-1-1.000-1" in page.text


def test_taboo_has_no_payoffs_of_its_own(run: Path) -> None:
    for path in (run / "episodes").glob("*.log"):
        games = [replace(each, verdict=replace(each.verdict, payoffs=None)) for each in read_log(path)]
        path.unlink()
        write_log(run, path.stem, games)
    page = page_of(run)
    assert "payoffs" not in page.unpacked("figures")
    assert "Mean payoff" not in page.text


def test_policies_of_a_seat_have_the_seats_name(run: Path) -> None:
    config = load_config(str(run / "config.yaml"), ["policies=separate"])
    write_config(run / "config.yaml", config)
    (run / "episodes" / "spag-1.log").unlink()
    played = kuhn_game("spag-1", 0, *GAMES[0])
    seats = tuple(replace(turn, policy=str(turn.role)) for turn in played.turns)
    write_log(run, "spag-1", [replace(played, turns=seats)])
    page = page_of(run)
    index = page.unpacked("index")
    assert {"first", "second"} <= set(index["players"])
    assert not set(map(str, Role)) & set(index["players"])
    assert "as first and second with separate weights" in page.text


def test_names_of_seats_stay_text(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = f"""
class Odd:
    seats = ({HOSTILE!r}, "<b>second</b>")
    max_turns = 2
    is_exhaustive = False
    def scenarios(self): return ["a"]
    def messages(self, seat, history, scenario): return []
    def rule(self, history, scenario): return None
"""
    monkeypatch.chdir(run)
    (run / "odd.py").write_text(source)
    config = parse_config({"game": {"name": "odd.py:Odd"}, "imitation": {"enabled": False}})
    write_config(run / "config.yaml", config)
    write_names(run, config)
    renamed(run, "odd.py:Odd")
    page = page_of(run)
    source = (run / "report.html").read_text(encoding="utf-8")
    assert "<script>alert" not in source
    assert "<b>second" not in source
    assert len(page.scripts) == 1
    assert page.unpacked("index")["seats"] == [HOSTILE, "<b>second</b>"]
    figures = page.unpacked("figures")
    assert figures["matrix"]["layout"]["xaxis"]["title"]["text"] == "&lt;b&gt;second&lt;/b&gt;"
    names = {trace["name"] for name in ("outcomes-trained", "payoffs") for trace in figures[name]["data"]}
    hovers = str([trace["hovertemplate"] for figure in figures.values() for trace in figure["data"]])
    assert "<b>" not in hovers.replace("<extra>", "")
    assert any("second" in name for name in names)
    assert Outcome.TIED in names


def test_a_run_of_two_games_has_the_parts_of_each_under_its_name(tmp_path: Path) -> None:
    page = page_of(make_two_games_run(tmp_path / "two"))
    text = page.text[: page.text.index("config.yaml")]
    for part in (
        "Self-play of Adversarial Taboo and kuhn",
        "games taboo (25%), kuhn (75%)",
        "kuhn: spag-1 against base",
    ):
        assert part in text, part
    for section in ("How games ended", "Standings"):
        after = text[text.index(section) :]
        assert -1 < after.index("Adversarial Taboo") < after.index("kuhn"), section
    assert text.count("What defenders could have known") == text.count("How far from the optimum") == 1
    figures = page.unpacked("figures")
    assert {"outcomes-held-out-0", "outcomes-held-out-1", "nash-conv-1", "payoffs-1", "matrix-0"} <= set(figures)
    assert "nash-conv-0" not in figures
    bars = {name: [trace["name"] for trace in figures[name]["data"]] for name in figures if "held-out" in name}
    assert "attacker wins" in bars["outcomes-held-out-0"]
    assert "first wins" in bars["outcomes-held-out-1"]


def test_the_games_on_the_page_of_a_run_of_two_are_told_apart(tmp_path: Path) -> None:
    page = page_of(make_two_games_run(tmp_path / "two"))
    index = page.unpacked("index")
    assert [(game["name"], game["seats"], game["hasReferee"]) for game in index["games"]] == [
        ("Adversarial Taboo", ["attacker", "defender"], True),
        ("kuhn", ["first", "second"], False),
    ]
    assert index["game"].count(1) == 2 * len(GAMES)
    assert index["game"].count(0) == 2 * len(Outcome)
    assert [index["stages"][stage] for stage in index["stage"]].count("spag-1") == len(GAMES) + len(Outcome)
    for number in range(2):
        own = [game for game, found in zip(page.games(), index["game"], strict=True) if found == number]
        assert any("reward" in turn for game in own for turn in game["turns"]), "by the settings of its game"


def test_the_page_of_one_game_has_nothing_of_several(run: Path) -> None:
    page = page_of(run)
    index = page.unpacked("index")
    assert [game["name"] for game in index["games"]] == [""], "a name tells games apart"
    assert set(index["game"]) == {0}
    text = shown(page)
    assert "All games together" not in text
    assert "kuhn: spag-1 against base" not in text
    assert 'id="filter-game"' not in (run / "report.html").read_text()

"""`spag-ray match`: who meets whom, who may play, and engines that are given one player's weights after another's."""

import io
import itertools
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from rich.console import Console
from rich.table import Table

from cluster.commands.match import kept_line
from cluster.monitor.tables import comparison_lines, head_to_head_lines, match_tables, outcome_table
from cluster.schedules.seating import Seating
from cluster.schedules.tournament import (
    Entrant,
    Tournament,
    check_entrants,
    check_models,
    entrants_of_run,
    in_match,
    models_of,
    pairings,
)
from cluster.types import Seat
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, InputError, ModelError
from spag_ray.families.torch_free import shape_of
from spag_ray.game.rules import Outcome, Role
from spag_ray.games.taboo.prompt_file import load_template
from spag_ray.results.game_names import GameNames
from spag_ray.results.matches import Game, Match
from tests.support.taboo import messages_of


@pytest.mark.parametrize(
    "text",
    [
        "new", "=x", "new=", "a/b=scripted", "../up=scripted", "new=http://127.0.0.1:9/v1", "new=no/such/folder",
        "new=scripted,", "new=,scripted", "new=scripted,scripted,scripted", "new=scripted,no/such/folder",
    ],
)  # fmt: skip
def test_what_is_no_player_is_refused_in_one_line(text: str) -> None:
    with pytest.raises((ConfigError, ModelError)) as error:
        Entrant.parse(text)
    assert "\n" not in str(error.value)


def test_a_player_is_a_folder_an_endpoint_or_the_expert(tiny_model: Path) -> None:
    assert Entrant.parse(f"new={tiny_model}") == Entrant("new", str(tiny_model))
    assert Entrant.parse("old=scripted") == Entrant("old")
    endpoint = Entrant.parse("far=http://127.0.0.1:8000/v1/#some/model").endpoint
    assert endpoint is not None
    assert (endpoint.url, endpoint.model) == ("http://127.0.0.1:8000/v1", "some/model")
    both = Entrant.parse(f"both={tiny_model}, scripted")
    assert both.in_seats == (both, Entrant("both"))
    assert both.folder == str(tiny_model)


def test_a_name_that_was_another_model_is_refused(tiny_model: Path, other_tiny_model: Path, tmp_path: Path) -> None:
    """A match that is in the file is not played again: its result would be printed as that of the new model."""
    moved = shutil.copytree(tiny_model, tmp_path / "moved")

    def check(*players: str) -> None:
        check_models(played, models_of([Entrant.parse(each) for each in players]), tmp_path)

    now = models_of([Entrant.parse(f"new={tiny_model}"), Entrant.parse("expert=scripted")])
    match = Match("new", "expert", ())
    played = [replace(match, models=in_match(now, match)), Match("spag-1", "new", ())]
    assert [Match.from_json(json.loads(json.dumps(each.as_json()))) for each in played] == played
    assert str(tiny_model) not in json.dumps(played[0].as_json()), "a record names no machine's paths"
    check(f"new={moved}", "expert=scripted")
    for other in (f"new={other_tiny_model}", "expert=scripted:cfr"):
        with pytest.raises(InputError, match=f"{other.partition('=')[0]} was another model in the match of new"):
            check(other)
    with pytest.raises(InputError, match="expert was another model"):
        check(f"expert={tiny_model},scripted:cfr")
    del played[0]
    check(f"new={other_tiny_model}")  # of a file from before: not known


def test_a_served_model_is_the_same_wherever_it_is_served() -> None:
    first, second = (models_of([Entrant.parse(f"far=http://127.0.0.1:{port}/v1#some/model")]) for port in (8000, 8001))
    assert first == second != models_of([Entrant.parse("far=http://127.0.0.1:8000/v1#another")])


def test_weights_that_are_gone_have_no_fingerprint(tiny_model: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(tiny_model, tmp_path / "moved")
    entrant = Entrant.parse(f"new={moved}")
    (moved / "model.safetensors").unlink()
    with pytest.raises(ModelError, match="no weights"):
        models_of([entrant])


def test_what_was_played_before_is_told() -> None:
    games = (Game("river", Outcome.TIED, 8), Game("piano", Outcome.TIED, 8))
    kept = [Match("a", "b", games, models=("of a", None)), Match("b", "a", games, models=(None, "of a"))]
    assert kept_line(kept, 2, {"taboo": ["river", "piano"]}) == "2 matches are not played again"
    assert "; 2 of them had other words, or not 4 games: " in kept_line(kept, 4, {"taboo": ["river", "piano"]})
    assert "; 2 of them" in kept_line(kept, 2, {"taboo": ["river"]})
    of_run = [Match("base", "base", games)]
    assert kept_line(of_run, 4, {"taboo": ["river", "piano"]}) == "1 matches are not played again", "as the run says"


def test_players_have_names_of_their_own() -> None:
    with pytest.raises(ConfigError, match="two players"):
        check_entrants([Entrant("a"), Entrant("a")], None)
    with pytest.raises(ConfigError, match="--against c"):
        check_entrants([Entrant("a"), Entrant("b")], "c")
    with pytest.raises(ConfigError, match="no players"):
        check_entrants([], None)


def test_every_pairing_comes_once_and_a_seat_changes_seldom() -> None:
    found = list(pairings("abcd"))
    assert sorted(found) == [(a, d) for a in "abcd" for d in "abcd"]
    changes = sum(before[seat] != after[seat] for before, after in itertools.pairwise(found) for seat in (0, 1))
    assert changes == len(found) - 1, "from one match to the next one player is kept"
    assert sorted(pairings("abc", "b")) == [("a", "b"), ("b", "a"), ("b", "c"), ("c", "b")]


def test_a_run_folder_gives_its_stages_in_order(tmp_path: Path, tiny_model: Path) -> None:
    for stage in ("spag-10", "spag-2", "imitated", "unfinished"):
        (tmp_path / "models" / stage).mkdir(parents=True)
        if stage != "unfinished":
            shutil.copytree(tiny_model, tmp_path / "models" / stage, dirs_exist_ok=True)
    names = [entrant.name for entrant in entrants_of_run(tmp_path, RunConfig(model=str(tiny_model)))]
    assert names == ["base", "imitated", "spag-2", "spag-10"]
    with pytest.raises(ConfigError, match="run folder"):
        entrants_of_run(tmp_path / "models", RunConfig(model=str(tiny_model)))


def test_a_run_of_two_policies_gives_players_of_two_models(tmp_path: Path, tiny_model: Path) -> None:
    for stage in ("imitated-defender", "imitated-attacker", "spag-1-attacker", "spag-1-defender", "spag-2-attacker"):
        shutil.copytree(tiny_model, tmp_path / "models" / stage)
    base, *stages = entrants_of_run(tmp_path, RunConfig(model=str(tiny_model)))
    assert base.in_seats == (base, base)
    assert [entrant.name for entrant in stages] == ["imitated", "spag-1"]
    folders = [[Path(seat.folder or "").name for seat in entrant.in_seats] for entrant in stages]
    assert folders == [["imitated-attacker", "imitated-defender"], ["spag-1-attacker", "spag-1-defender"]]


def test_models_of_one_shape_share_engines(tmp_path: Path, tiny_model: Path, other_tiny_model: Path) -> None:
    assert shape_of(str(tiny_model)) == shape_of(str(other_tiny_model))
    larger = shutil.copytree(tiny_model, tmp_path / "larger")
    config = json.loads((larger / "config.json").read_text())
    (larger / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert shape_of(str(tiny_model)) != shape_of(str(larger))


def test_on_one_engine_players_of_two_seats_alternate(tmp_path: Path, tiny_model: Path, other_tiny_model: Path) -> None:
    config = parse_config({"evaluation": {"engines": "in_turn", "temperature": 0.5}})
    told: list[Any] = []
    fleet = SimpleNamespace(start=lambda model, pool, policy, count: told.append(("start", model, pool, count)))
    publisher: Any = SimpleNamespace(fleet=fleet, give=lambda pool, saved: told.append(("give", pool, saved)))
    seats: dict[str, tuple[Seat, Seat]] = {}
    matches: Any = SimpleNamespace(
        of=lambda stage: [],
        play=lambda first, second, stage: seats.update({"@".join(stage.seats): (first, second)}),
        results=[],
    )
    status: Any = SimpleNamespace(set_status=lambda text: None)
    seating = Seating(config, [], str(tiny_model), {})
    tournament = Tournament(config, matches, publisher, seating, status)
    one, two = str(tiny_model), str(other_tiny_model)
    tournament.play([Entrant("a", one), Entrant("b", two), Entrant("expert")])
    assert told == [
        ("start", one, "players", 1),
        ("give", "players", {None: (one, 1)}),
        ("give", "players", {None: (one, 2), "other": (two, 2)}),
    ], "what is held is not given again, for any pairing in either seat"
    first, second = seats["a@b"]
    assert (first.pool, first.policy, first.adapter) == ("players", "attacker", None)
    assert (second.pool, second.policy, second.adapter) == ("players", "defender", "other")
    assert [seat.adapter for seat in seats["b@b"]] == ["other", "other"]
    assert [seat.adapter for seat in seats["b@a"]] == ["other", None]
    assert seats["expert@a"][0].cards == {}
    tournament.play([Entrant("two", one, defender=Entrant("two", two)), Entrant("expert")])
    assert [seat.adapter for seat in seats["two@two"]] == [None, "other"]
    assert seats["expert@two"][1].adapter == "other"
    larger = Path(shutil.copytree(tiny_model, tmp_path / "larger"))
    settings = json.loads((larger / "config.json").read_text())
    (larger / "config.json").write_text(json.dumps({**settings, "num_hidden_layers": 9}))
    with pytest.raises(ConfigError, match=r"different shapes.*set evaluation\.engines: own"):
        tournament.play([Entrant("a", one), Entrant("large", str(larger))])


def test_engines_are_restarted_for_weights_that_they_read_only_at_their_start(
    tmp_path: Path, tiny_model: Path, other_tiny_model: Path
) -> None:
    config = parse_config({"evaluation": {"engines": "own"}})
    told: list[Any] = []
    fleet = SimpleNamespace(
        start=lambda model, pool, policy, count: told.append(("start", Path(model))),
        remove_pool=lambda pool: told.append("remove"),
    )
    publisher: Any = SimpleNamespace(fleet=fleet, give=lambda pool, saved: told.append(("give", Path(saved[None][0]))))
    matches: Any = SimpleNamespace(of=lambda stage: [], play=lambda *_: None, results=[])
    status: Any = SimpleNamespace(set_status=lambda text: None)
    old = shutil.copytree(tiny_model, tmp_path / "old")
    (old / "model.safetensors").rename(old / "pytorch_model.bin")
    tournament = Tournament(config, matches, publisher, Seating(config, [], str(tiny_model), {}), status)
    tournament.play([Entrant("old", str(old)), Entrant("new", str(other_tiny_model))], "old")
    new = other_tiny_model
    started = [("start", old), ("start", new)]
    assert told == [*started, ("give", new), "remove", ("start", old)]


def test_the_newest_of_two_is_the_one_of_the_later_round() -> None:
    game = Game("word", Outcome.ATTACKER_WINS, 3)
    lines = head_to_head_lines([Match("spag-10", "spag-9", (game,)), Match("spag-9", "spag-10", (game,))], GameNames())
    assert lines == [
        "spag-10 as attacker against spag-9: score 1.00",
        "spag-10 as defender against spag-9: score 0.00",
        "mean score over both seats: 0.50 (0.5 is even)",
    ]


def test_scores_of_the_newest_are_not_mixed_over_opponents_or_stages() -> None:
    won, lost = (Game("word", outcome, 3) for outcome in (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS))
    seats = (("spag-1", "base", lost), ("base", "spag-1", won), ("spag-2", "base", won), ("base", "spag-2", lost))
    matches = [Match(attacker, defender, (game,)) for attacker, defender, game in seats]
    lines = head_to_head_lines(
        [*matches, Match("spag-2", "spag-2", (won,)), Match("spag-2", "imitated", (lost,))], GameNames()
    )
    assert lines == [
        "spag-2 as attacker against base: score 1.00",
        "spag-2 as defender against base: score 1.00",
        "mean score over both seats: 1.00 (0.5 is even)",
        "spag-2 as attacker against imitated: score 0.00",
    ], "one seat has no mean over both"
    without_games = [Match("spag-2", "base", ()), Match("base", "spag-2", ())]
    assert head_to_head_lines([Match("base", "base", (won,)), *without_games], GameNames()) == []
    assert comparison_lines(without_games, ["base", "spag-2"], None, GameNames()) == []


def table_text(table: Table) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


KUHN = GameNames("kuhn", ("first", "second"), "scenario", guesses=False, is_exhaustive=True)


def test_tables_of_another_game_have_its_seats() -> None:
    won, lost = (Game(deal, outcome, 2) for deal, outcome in zip(("KJ", "JQ"), list(Outcome)[:2], strict=True))
    matches = [Match("new", "old", (won, won)), Match("old", "new", (lost, won)), Match("old", "old", (won, lost))]
    lines = [*head_to_head_lines(matches, KUHN), *comparison_lines(matches, ["old", "new"], None, KUHN)]
    tables = [outcome_table(matches, KUHN), *match_tables(matches, ["old", "new"], KUHN)]
    text = " ".join("\n".join([*lines, *map(table_text, tables)]).split())
    for part in (
        "old as second against new",
        "scenarios with p =",
        "All scenarios: % of games won",
        "first v second",
        "First's score in % against each second",
        "95%, by scenario",
    ):
        assert part in text, part
    assert not re.search("attack|defen|word", text, re.IGNORECASE)


def test_names_of_seats_are_no_markup_and_no_column_is_lost() -> None:
    names = GameNames("odd", ("[bold]tie", "[/nothing]\x1b[2J\n"), "scenario", guesses=False)
    won = Game("a", Outcome.ATTACKER_WINS, 2)
    matches = [Match("new", "old", (won,)), Match("old", "new", (won,))]
    for table in (outcome_table(matches, names), *match_tables(matches, ["old", "new"], names)):
        text = table_text(table)
        assert "[bold]tie" in text
        assert "\x1b" not in text
    plainly = GameNames("odd", ("tie", "breach"), "scenario", guesses=False)
    assert len(outcome_table(matches, plainly).columns) == 6


def test_seats_that_no_games_connect_are_not_rated_beside_each_other() -> None:
    ends = (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS)
    games = tuple(Game(word, ends[word < "d"], 3) for word in "abcdef")
    # As attacker b met three defenders, as defender two attackers; nothing tells these five from those four.
    matches = [Match(seats[0], seats[1], games) for seats in ("ba", "bc", "bd", "ab", "cb")]
    rated = {
        tuple(line.split()[:2]): "[" in line
        for line in table_text(match_tables(matches, "abcd", GameNames())[1]).splitlines()
        if line.strip()[:2] in ("a ", "b ", "c ", "d ")
    }
    # With b's defenders there is no other attacker that it could be rated against.
    assert {seat for seat, is_rated in rated.items() if is_rated} == {(name, "defender") for name in "acd"}
    assert len(rated) == 7, "all have breaches and ties"
    connected = table_text(match_tables([*matches, Match("b", "b", games)], "abcd", GameNames())[1])
    assert all("[" in line for line in connected.splitlines() if line.strip()[:2] in ("a ", "b ", "c ", "d "))


def test_a_seat_whose_every_game_was_broken_off_has_a_score_but_none_without_breaches() -> None:
    won, broken = Game("word", Outcome.ATTACKER_WINS, 3), Game("word", Outcome.ATTACKER_BREACH, 1)
    (line,) = comparison_lines(
        [Match("new", "old", (won,)), Match("old", "new", (broken,))], ["old", "new"], None, GameNames()
    )
    assert line.startswith("new against old, both seats: 1.00; better over 1 words")


def test_an_endpoint_reads_what_other_players_read() -> None:
    said = [(Role.ATTACKER, "It flows."), (Role.DEFENDER, "From where?"), (Role.ATTACKER, "From a lake.")]
    template = load_template("chat")
    messages = messages_of(template, said, Role.DEFENDER, "river", 4)
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"].endswith("\n\nIt flows.")
    assert "river" not in str(messages)
    attacker = messages_of(template, said[:2], Role.ATTACKER, "river", 4)
    assert [message["role"] for message in attacker] == ["user", "assistant", "user"]
    assert "river" in attacker[0]["content"]
    assert attacker[1]["content"] == "It flows."
    (flat,) = messages_of(load_template("flat"), said, Role.DEFENDER, "river", 4)
    assert flat["role"] == "user"
    assert "From a lake." in flat["content"]


def test_players_that_met_in_their_two_seats_on_other_words_have_a_score_and_no_paired_test() -> None:
    """As when a match was interrupted, and continued with another file of words."""
    first, second = (tuple(Game(f"{name}{n}", Outcome.TIED, 8) for n in range(6)) for name in "ab")
    matches = [Match("new", "old", first), Match("old", "new", second)]
    (line,) = comparison_lines(matches, ["old", "new"], None, GameNames())
    assert line.startswith("new against old, both seats: 0.50 [")
    assert "p =" not in line


def test_the_tables_say_who_is_better() -> None:
    words = [f"word{number}" for number in range(20)]
    wins, loses = (
        tuple(Game(word, outcome, 3) for word in words) for outcome in (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS)
    )
    matches = [Match("new", "old", wins), Match("old", "new", loses), Match("old", "old", wins)]
    (line,) = comparison_lines(matches, ["old", "new"], None, GameNames())
    assert line.startswith("new against old, both seats: 1.00")
    assert "p = 0.000" in line
    assert comparison_lines(matches[:1], ["old", "new"], "old", GameNames()) == []
    win_table, player_table = match_tables(matches, ["old", "new"], GameNames())
    assert win_table.row_count == 2
    assert player_table.row_count == 4

"""`spag-ray match`: who meets whom, who may play, and engines that are given one player's weights after another's."""

from __future__ import annotations

import io
import itertools
import json
import os
import shutil
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from rich.table import Table

from cluster.cli import app, run_guarded
from cluster.tables import comparison_lines, head_to_head_lines, match_tables
from cluster.tournament import Entrant, check_entrants, entrants_of_run, pairings, shape_of
from spag_ray.errors import ConfigError, ModelError
from spag_ray.game import Outcome, Role
from spag_ray.matches import Game, Match, read_matches
from spag_ray.prompts import chat_messages, load_template


@pytest.mark.parametrize(
    "text", ["new", "=x", "new=", "a/b=scripted", "../up=scripted", "new=http://127.0.0.1:9/v1", "new=no/such/folder"]
)
def test_what_is_no_player_is_refused_in_one_line(text: str) -> None:
    with pytest.raises((ConfigError, ModelError)) as error:
        Entrant.parse(text)
    assert "\n" not in str(error.value)


def test_a_player_is_a_folder_an_endpoint_or_the_expert(tiny_model: Path) -> None:
    assert Entrant.parse(f"new={tiny_model}") == Entrant("new", str(tiny_model))
    assert Entrant.parse("old=scripted") == Entrant("old")
    endpoint = Entrant.parse("far=http://127.0.0.1:8000/v1/#some/model").endpoint
    assert endpoint is not None and (endpoint.url, endpoint.model) == ("http://127.0.0.1:8000/v1", "some/model")


def test_players_have_names_of_their_own() -> None:
    with pytest.raises(ConfigError, match="two players"):
        check_entrants([Entrant("a"), Entrant("a")], None)
    with pytest.raises(ConfigError, match="--against c"):
        check_entrants([Entrant("a"), Entrant("b")], "c")
    with pytest.raises(ConfigError, match="nobody plays"):
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
    names = [entrant.name for entrant in entrants_of_run(tmp_path, str(tiny_model))]
    assert names == ["base", "imitated", "spag-2", "spag-10"]
    with pytest.raises(ConfigError, match="run folder"):
        entrants_of_run(tmp_path / "models", str(tiny_model))


def test_models_of_one_shape_share_engines(tmp_path: Path, tiny_model: Path, other_tiny_model: Path) -> None:
    assert shape_of(str(tiny_model)) == shape_of(str(other_tiny_model))
    larger = shutil.copytree(tiny_model, tmp_path / "larger")
    config = json.loads((larger / "config.json").read_text())
    (larger / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 3}))
    assert shape_of(str(tiny_model)) != shape_of(str(larger))


def test_the_newest_of_two_is_the_one_of_the_later_round() -> None:
    game = Game("word", Outcome.ATTACKER_WINS, 3)
    lines = head_to_head_lines([Match("spag-10", "spag-9", (game,)), Match("spag-9", "spag-10", (game,))])
    assert lines == [
        "spag-10 as attacker against spag-9: score 1.00",
        "spag-10 as defender against spag-9: score 0.00",
        "mean score over both seats: 0.50 (0.5 is even)",
    ]


def table_text(table: Table) -> str:
    console = Console(file=io.StringIO(), width=200)
    console.print(table)
    return console.file.getvalue()  # type: ignore[attr-defined]


def test_seats_that_no_games_connect_are_not_rated_beside_each_other() -> None:
    game = Game("word", Outcome.ATTACKER_WINS, 3)
    # As attacker b met three defenders, as defender two attackers; nothing tells these five from those four.
    matches = [Match(*seats, (game,)) for seats in ("ba", "bc", "bd", "ab", "cb")]
    rated = {
        tuple(line.split()[:2]): "[" in line
        for line in table_text(match_tables(matches, "abcd")[1]).splitlines()
        if line.strip()[:2] in ("a ", "b ", "c ", "d ")
    }
    assert {seat for seat, is_rated in rated.items() if is_rated} == {
        ("b", "attacker"),
        *((name, "defender") for name in "acd"),
    }
    assert len(rated) == 7, "all have breaches and ties"
    connected = table_text(match_tables([*matches, Match("b", "b", (game,))], "abcd")[1])
    assert all("[" in line for line in connected.splitlines() if line.strip()[:2] in ("a ", "b ", "c ", "d "))


def test_a_seat_whose_every_game_was_broken_off_has_a_score_but_none_without_breaches() -> None:
    won, broken = Game("word", Outcome.ATTACKER_WINS, 3), Game("word", Outcome.ATTACKER_BREACH, 1)
    (line,) = comparison_lines([Match("new", "old", (won,)), Match("old", "new", (broken,))], ["old", "new"], None)
    assert line.startswith("new against old, both seats: 1.00 [1.00, 1.00]; better over 1 words")


def test_an_endpoint_reads_what_other_players_read() -> None:
    said = [(Role.ATTACKER, "It flows."), (Role.DEFENDER, "From where?"), (Role.ATTACKER, "From a lake.")]
    template = load_template("chat")
    messages = chat_messages(template, said, Role.DEFENDER, "river", 4)
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0]["content"].endswith("\n\nIt flows.") and "river" not in str(messages)
    attacker = chat_messages(template, said[:2], Role.ATTACKER, "river", 4)
    assert [message["role"] for message in attacker] == ["user", "assistant", "user"]
    assert "river" in attacker[0]["content"] and attacker[1]["content"] == "It flows."
    (flat,) = chat_messages(load_template("flat"), said, Role.DEFENDER, "river", 4)
    assert flat["role"] == "user" and "From a lake." in flat["content"]


def test_the_tables_say_who_is_better() -> None:
    words = [f"word{number}" for number in range(20)]
    wins, loses = (
        tuple(Game(word, outcome, 3) for word in words) for outcome in (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS)
    )
    matches = [Match("new", "old", wins), Match("old", "new", loses), Match("old", "old", wins)]
    (line,) = comparison_lines(matches, ["old", "new"], None)
    assert line.startswith("new against old, both seats: 1.00") and "p = 0.000" in line
    assert comparison_lines(matches[:1], ["old", "new"], "old") == []
    win_table, player_table = match_tables(matches, ["old", "new"])
    assert win_table.row_count == 2 and player_table.row_count == 4


@pytest.fixture
def served(tiny_model: Path, tmp_path: Path) -> Iterator[str]:
    """The tiny model behind vLLM's own server, on loopback."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(tiny_model)]
    command += ["--served-model-name", "tiny", "--host", "127.0.0.1", "--port", str(port), "--enforce-eager"]
    command += ["--max-model-len", "512", "--dtype", "float32", "--max-num-seqs", "8"]
    with (tmp_path / "server.log").open("w") as log:
        server = subprocess.Popen(command, stdout=log, stderr=log, env={**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1"})
        try:
            url = f"http://127.0.0.1:{port}/v1"
            deadline = time.monotonic() + 180
            while True:
                try:
                    urllib.request.urlopen(f"{url}/models", timeout=2).close()
                    break
                except OSError:
                    assert server.poll() is None and time.monotonic() < deadline, (tmp_path / "server.log").read_text()
                    time.sleep(1)
            yield f"{url}#tiny"
        finally:
            server.terminate()
            server.wait(30)


Play = Callable[..., dict[tuple[str, str], tuple[Game, ...]]]


@pytest.fixture
def play(tmp_path: Path, tiny_model: Path, words: Path, capsys: pytest.CaptureFixture[str]) -> Play:
    """`spag-ray match` with some arguments: greedy games in float32, one at a time; what matches.json then holds."""
    config = {
        "model": str(tiny_model),
        "engine": {"dtype": "float32", "max_model_len": 512, "kv_cache_gib": 0.1, "max_num_seqs": 4},
        "sampling": {"max_new_tokens": 6},
        "game": {"max_turns": 2},
        "evaluation": {"temperature": 0.0},
        "self_play": {"games_in_flight": 1},
        "cluster": {"num_cpus": 2, "object_store_gib": 0.2},
    }
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(config))
    out = tmp_path / "matches.json"

    def play(*arguments: str) -> dict[tuple[str, str], tuple[Game, ...]]:
        command = ["match", str(tmp_path / "config.yaml"), "--words", str(words), "--games", "3", "--out", str(out)]
        assert run_guarded(lambda standalone_mode: app([*command, *arguments])) == 0, capsys.readouterr().err
        return {(match.attacker, match.defender): match.games for match in read_matches(out)}

    return play


@pytest.mark.slow
def test_engines_take_one_players_weights_after_anothers(
    tmp_path: Path, tiny_model: Path, other_tiny_model: Path, play: Play, capsys: pytest.CaptureFixture[str]
) -> None:
    """Slow: two vLLM engines. A copy of a model plays that model's games again, whatever weights came between; another
    model plays others."""
    copy = shutil.copytree(tiny_model, tmp_path / "copy")
    games = play("--player", f"a={tiny_model}", "--player", f"b={other_tiny_model}", "--player", f"c={copy}")
    assert len(games) == 9 and all(len(each) == 3 for each in games.values())
    run = tmp_path / "matches.json.run"
    a, mixed, c, b = (said(run / "episodes" / f"match-{pair}.log") for pair in ("a-a", "a-c", "c-c", "b-b"))
    assert a == c == mixed and a != b
    logs = [path.name for path in (run / "logs").glob("engine-*.log")]
    assert len(logs) == 2, f"one engine a seat: {logs}"
    assert "c against b, both seats" in capsys.readouterr().out


@pytest.mark.slow
def test_a_served_model_meets_the_expert(tmp_path: Path, served: str, play: Play) -> None:
    """Slow: a vLLM server. What was played is kept when others play."""
    games = play("--player", f"far={served}", "--player", "expert=scripted", "--against", "expert")
    assert set(games) == {("far", "expert"), ("expert", "far")}
    after = play("--player", f"far={served}", "--player", "expert=scripted")
    assert {pair: after[pair] for pair in games} == games and len(after) == 4
    texts = said(tmp_path / "matches.json.run-2" / "episodes" / "match-far-far.log")
    assert len({first for first, *_ in texts}) > 1, "greedy, and yet it said other things of other words"


def said(log: Path) -> list[list[str]]:
    from spag_ray.episode_log import read_log

    episodes = sorted(read_log(log), key=lambda episode: episode.number)
    return [[turn.text for turn in episode.turns] for episode in episodes]


def test_an_endpoint_where_nobody_answers_is_one_line(
    tmp_path: Path, tiny_model: Path, words: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config.yaml").write_text(yaml.safe_dump({"model": str(tiny_model), "engine": {"max_model_len": 4096}}))
    with socket.socket() as closed:  # bound, never listening
        closed.bind(("127.0.0.1", 0))
        far = f"far=http://127.0.0.1:{closed.getsockname()[1]}/v1#tiny"
        command = ["match", str(tmp_path / "config.yaml"), "--words", str(words), "--out", str(tmp_path / "m.json")]
        assert run_guarded(lambda standalone_mode: app([*command, "--player", far])) == 2
    error = capsys.readouterr().err
    assert "no player there" in error and error.count("\n") == 1

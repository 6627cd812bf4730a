"""Records of runs of one game that have no name of it are read with its name."""

import json
from pathlib import Path
from typing import Any

import pytest

from cluster.buffer.buffer_actor import BufferActor
from cluster.run.checkpoint import Checkpoints, RoleAverages
from spag_ray.config.parts import CheckpointConfig
from spag_ray.game.words import WordStream
from spag_ray.results.former_records import named_line, named_row, named_state, names_of_seats
from spag_ray.results.lines import OF_GAMES, GamesLine
from spag_ray.results.matches import read_matches
from spag_ray.results.metric_lines import MetricLines
from spag_ray.results.report.files import read_files
from tests.support.old_run_folders import placed

PLAYED = {"time": 1.0, "kind": "play", "stage": "spag-1", "games": 4}
ONE, SEVERAL = "game: {name: textarena, env: TicTacToe-v0}\n", "games: [{name: taboo, share: 0.5}]\n"


def run_of(folder: Path, settings: str) -> Path:
    (folder / "config.yaml").write_text(settings)
    return folder


@pytest.mark.parametrize(
    ("settings", "name"), [(ONE, "textarena:TicTacToe-v0"), ("game: {max_turns: 2}\n", "taboo"), ("seed: 1\n", "taboo")]
)
def test_a_record_without_a_game_is_of_the_only_one_of_its_run(settings: str, name: str, tmp_path: Path) -> None:
    run = run_of(tmp_path, settings)
    assert named_line(PLAYED, run) == {**PLAYED, "game": name}
    assert list(named_line(PLAYED, run) or {})[:4] == ["time", "kind", "stage", "game"], "as it is written now"
    assert named_row({"attacker": "base"}, run)["game"] == name


def test_a_record_that_has_a_game_keeps_it_and_one_of_no_game_gets_none(tmp_path: Path) -> None:
    run = run_of(tmp_path, ONE)
    for line in ({**PLAYED, "game": "kuhn"}, {"time": 1.0, "kind": "buffer", "waiting": 1}):
        assert named_line(dict(line), run) == line
    assert named_row({"game": "kuhn"}, run) == {"game": "kuhn"}


def test_the_sum_over_several_games_is_left_out_and_guesses_were_taboos(tmp_path: Path) -> None:
    run = run_of(tmp_path, SEVERAL)
    assert named_line(PLAYED, run) is None
    assert named_line({**PLAYED, "kind": "held_out"}, run) == {**PLAYED, "kind": "held_out", "game": "taboo"}
    (run / "metrics.jsonl").write_text(
        "".join(
            json.dumps({**PLAYED, "kind": "other", **more}) + "\n" for more in ({}, {"kind": "games"}, {"game": "a"})
        )
    )
    lines = MetricLines(run / "metrics.jsonl")
    assert [line["kind"] for line in lines.new()] == ["other", "other"]
    assert lines.num_damaged == 0


def test_a_configuration_that_is_gone_damaged_or_changed_is_no_error(tmp_path: Path) -> None:
    assert named_row({}, tmp_path)["game"] == "taboo"
    for text in ("[", "- a\n", "game: 3\n"):
        assert named_row({}, run_of(tmp_path, text))["game"] == "taboo"
    assert named_row({}, run_of(tmp_path, ONE + "# longer\n"))["game"] == "textarena:TicTacToe-v0"


def test_a_state_of_one_game_gets_its_name_and_one_of_several_stays(tmp_path: Path) -> None:
    run = run_of(tmp_path, ONE)
    words = {"words": ["a", "b"], "seed": 3, "attacker_seats": 1, "next_index": 1, "unfinished": []}
    state = {"words": words, "baselines": {"attacker": 0.5, "defender": 0.0}, "role_wins": "ad", "results": [{}]}
    name = "textarena:TicTacToe-v0"
    found = named_state(state, run)
    assert (found["baselines"], found["role_wins"]) == ({name: state["baselines"]}, {name: "ad"})
    assert found["results"] == [{"game": name}]
    stream = WordStream.from_state(found["words"])
    assert [(each.game, each.words) for each in stream.games] == [(name, ("a", "b"))]
    assert stream.lease().index == 1
    assert named_state(found, run) is found
    several: dict[str, Any] = {"words": {"games": []}, "baselines": {"kuhn": {"attacker": 0.5}}, "role_wins": ""}
    assert named_state(several, run_of(tmp_path, SEVERAL)) == several | {"role_wins": {}, "results": []}


def test_names_of_seats_were_those_of_the_only_game() -> None:
    assert names_of_seats({"seats": ["a", "b"]}, "kuhn") == {"seats": ["a", "b"]}
    assert names_of_seats({"games": {"kuhn": {"seats": ["a", "b"]}}}, "kuhn") == {"seats": ["a", "b"]}


@pytest.mark.parametrize("name", ["rounds", "stream"])
def test_every_record_of_a_kept_folder_has_the_name(name: str, tmp_path: Path) -> None:
    folder = placed(name, tmp_path)
    typed = [line for _, line in MetricLines(folder / "metrics.jsonl").typed()]
    assert {line.game for line in typed if isinstance(line, OF_GAMES)} == {"taboo"}
    assert any(isinstance(line, GamesLine) for line in typed)
    matches = read_matches(folder / "matches.json")
    assert {match.game for match in matches} == {"taboo"}
    files = read_files(folder)
    assert files.config is not None
    assert list(files.games) == ["taboo"]
    assert files.of_game("taboo").matches == tuple(matches)
    newest = Checkpoints(folder, CheckpointConfig()).newest()
    assert newest is not None
    averages = RoleAverages.saved_in(newest[1], files.config)
    assert list(averages.windows) == ["taboo"]
    assert any(averages.baselines["taboo"].values.values()) == (name == "rounds"), "nobody had won in the stream"


async def test_an_open_stream_of_a_kept_folder_goes_on(tmp_path: Path) -> None:
    buffer = BufferActor(str(placed("stream", tmp_path) / "episodes"))
    await buffer.played("spag-1")
    assert (await buffer.stream_counts()).begun > 0


def test_matches_of_two_models_have_the_game_of_the_run_that_played_them(tmp_path: Path) -> None:
    file = tmp_path / "match.json"
    file.write_text('[{"attacker": "a", "defender": "b", "games": []}]')
    assert [match.game for match in read_matches(file)] == ["taboo"]
    (tmp_path / "match.json.run").mkdir()
    (tmp_path / "match.json.run" / "config.yaml").write_text("game: {name: kuhn}\n")
    assert [match.game for match in read_matches(file)] == ["kuhn"]

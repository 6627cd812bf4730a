"""The published files: what is written can be read, and what is wrong is named with its place."""

import json
from pathlib import Path
from typing import Any

import pytest

from spag_ray.episodes.formats import read_games, read_samples, read_sft, write_games, write_samples
from spag_ray.errors import InputError
from spag_ray.training_data.rewards import to_samples


def game(**changes: Any) -> dict[str, Any]:
    history = [{"role": "attacker", "content": "What purrs?"}, {"role": "defender", "content": " A cat. "}]
    return {"history": history, "target_word": "cat", "max_turns": 5, **changes}


def sample(**changes: Any) -> dict[str, Any]:
    return {"query": "q", "target": "t", "reward": 1.0, "role": "attacker", "weight": 0.5, **changes}


def saved(path: Path, content: object) -> Path:
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return path


def test_games_come_back_as_written(tmp_path: Path) -> None:
    games = [game(), game(target_word="na\u00efve", outcome="tied game")]
    write_games(tmp_path / "games.json", games)
    assert read_games(tmp_path / "games.json") == games
    assert [path.name for path in tmp_path.iterdir()] == ["games.json"]


def test_samples_come_back_as_written(tmp_path: Path) -> None:
    rows = [sample(), {"query": "a", "target": "b", "type": "sft", "weight": 1.0}]
    write_samples(tmp_path / "rows.json", rows)
    assert read_samples(tmp_path / "rows.json") == rows


def test_json_lines_are_read_too(tmp_path: Path) -> None:
    lines = "\n".join(json.dumps(game(max_turns=n)) for n in (1, 2)) + "\n\n"
    assert [g["max_turns"] for g in read_games(saved(tmp_path / "games.jsonl", lines))] == [1, 2]
    assert len(read_games(saved(tmp_path / "one.json", json.dumps(game(), indent=2)))) == 1


def test_sft_data_is_read_in_each_of_its_shapes(tmp_path: Path) -> None:
    rows = [
        {"instruction": "Add.", "input": "1 2", "output": "3"},
        {"instruction": "Greet.", "input": "", "output": "Hi."},
        {"prompt": "p", "target": "t"},
        {"query": "q", "target": "t", "type": "sft", "weight": 1.0},
    ]
    read = read_sft(saved(tmp_path / "sft.json", rows))
    assert [(row["query"], row["target"]) for row in read] == [
        ("Add.\n1 2", "3"),
        ("Greet.", "Hi."),
        ("p", "t"),
        ("q", "t"),
    ]
    assert all(row["type"] == "sft" and row["weight"] == 1.0 for row in read)


def test_rows_with_an_empty_answer_are_left_out_and_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    rows = [{"instruction": f"Say {number}.", "input": "", "output": str(number)} for number in range(40)]
    rows[3]["output"] = ""
    rows[17]["output"] = " \n"
    rows[39] = {"prompt": "p", "target": ""}
    read = read_sft(saved(tmp_path / "sft.json", rows))
    assert [row["target"] for row in read] == [str(number) for number in range(39) if number not in (3, 17)]
    assert "sft.json: 3 of 40 rows are left out, because their answer is empty: 3, 17, 39" in caplog.text
    with pytest.raises(InputError, match=r"sft\.json: the answer of every row is empty"):
        read_sft(saved(tmp_path / "sft.json", [rows[3], rows[17]]))
    with pytest.raises(InputError, match='row 1: "output" must be a text, found None'):
        read_sft(saved(tmp_path / "sft.json", [rows[0], {"instruction": "Add."}]))


def test_training_rows_carry_the_query_that_the_player_read() -> None:
    def render(history: Any, role: Any, target_word: str, max_turns: int) -> str:
        return f"{len(history)} {role} {target_word} {max_turns}"

    tied = game(history=[])
    assert to_samples([tied, game()], 0.8, "published", render) == [
        {"query": "0 attacker cat 5", "target": "What purrs?", "reward": 1.0, "role": "attacker", "weight": 0.5}
    ]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "the file is empty"),
        ("[]", "the list is empty"),
        ('[{"a": 1},\n {"a" 2}]', r"line 2, column 7: not valid JSON"),
        ('{"a": 1}\n{"a": }\n', r"line 2, column 7: not valid JSON"),
        ("[1]", "entry 0 must be an object"),
        ("[" * 100000, "nested too deeply|not valid JSON"),
        ([game(target_word=" ")], 'episode 0: "target_word" is empty'),
        ([game(), game(max_turns=0)], 'episode 1: "max_turns" must be'),
        ([game(max_turns=True)], 'episode 0: "max_turns" must be'),
        ([game(), game(history=[{"role": "defender", "content": "x"}])], "episode 1: turn 0 is by 'defender'"),
        ([game(history="x")], "episode 0: a history must be a list"),
        ([game(history=[{"role": "attacker", "content": "\ud800"}])], 'turn 0: "content" has half of a surrogate pair'),
    ],
)
def test_a_faulty_games_file_is_one_clear_error(tmp_path: Path, content: object, message: str) -> None:
    path = saved(tmp_path / "games.json", content)
    with pytest.raises(InputError, match=message) as caught:
        read_games(path)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (sample(reward=float("nan")), '"reward" must be a finite number'),
        (sample(weight=float("inf")), '"weight" must be a finite number'),
        (sample(weight="1"), '"weight" must be a finite number'),
        (sample(weight=10**400), '"weight" must be a finite number, found 1000'),
        (sample(target="  "), '"target" is empty'),
        (sample(role="judge"), '"role" must be'),
        (sample(query=None), '"query" must be a text'),
        ({"type": "sft", "target": "t"}, "SFT data needs"),
    ],
)
def test_a_faulty_sample_is_refused_on_reading_and_writing(tmp_path: Path, row: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=f"row 1: {message}"):
        read_samples(saved(tmp_path / "rows.json", [sample(), row]))
    with pytest.raises(InputError, match=message):
        write_samples(tmp_path / "out.json", [row])
    assert not (tmp_path / "out.json").exists()


def test_missing_files_and_folders_are_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.json: cannot read it"):
        read_sft(tmp_path / "none.json")
    with pytest.raises(InputError, match="cannot be written"):
        write_games(tmp_path / "none" / "games.json", [game()])


def test_an_existing_file_is_never_overwritten(tmp_path: Path) -> None:
    path = saved(tmp_path / "games.json", "precious")
    with pytest.raises(InputError, match="nothing is overwritten"):
        write_games(path, [game()])
    assert path.read_text() == "precious"

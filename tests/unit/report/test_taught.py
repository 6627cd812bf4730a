"""benchmarks/taught.py: what its tables and its headline say of records."""

import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import taught
from benchmarks.hearing import Gain
from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import EpisodeLog
from spag_ray.episodes.wire import encode
from spag_ray.game.rules import Outcome
from tests.support.episodes import game

WORDS = ("river", "piano", "lamp", "tiger")


def record(seed: int, num_right: int, seats: Sequence[tuple[str, str]] = taught.SEATS) -> dict[str, Any]:
    """Of four words; the last stage names so many of them, whoever gives the hints, and the imitated model none."""
    matches = []
    for attacker, defender in seats:
        right = num_right if defender == taught.LAST else 0
        ends = [Outcome.DEFENDER_WINS] * right + [Outcome.TIED] * (len(WORDS) - right)
        games = [[word, str(end), 8] for word, end in zip(WORDS, ends, strict=True)]
        matches.append({"game": "taboo", "attacker": attacker, "defender": defender, "games": games})
    heard = {"first_choice_own_hints": [[w, float(w == "river"), True] for w in WORDS], "p_where_it_claims": []}
    rounds = {
        "1": [[word, str(Outcome.TIED), -4.0, None if word == "river" else -3.0] for word in WORDS],
        "2": [[word, str(Outcome.DEFENDER_WINS), -3.0, -1.0] for word in WORDS],
    }
    return {"seed": seed, "seconds": 120.0, "rounds": rounds, "matches": matches, "heard": heard}


def test_seeds_are_pooled_and_a_headline_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, num_right in ((1, 2), (2, 4)):
        (tmp_path / f"{seed}.json").write_text(json.dumps(record(seed, num_right)))
    (tmp_path / "matches-1.json").write_text("[]")  # of a run; no record
    monkeypatch.setattr(sys, "argv", ["taught", "tables", "--out", str(tmp_path)])
    taught.main()
    told = capsys.readouterr().out
    assert "Seeds: 1, 2." in told
    rows = {tuple(cells[:2]): cells for line in told.splitlines() if len(cells := line.strip("| ").split(" | ")) == 8}
    assert rows["taught", "taught"][2:4] == ["8", rows["imitated", "taught"][3]]
    assert rows["taught", "taught"][3].startswith("75 % [")
    assert rows["taught", "taught"][-1] == "50 100 %"
    assert rows["taught", "imitated"][3] == "0 % [0, 0]"
    assert rows["taught", "imitated"][5] == "100 % [100, 100]", "ties"
    assert ("expert", "taught") not in rows
    assert "| 1 | 0 % [0, 0] | -4.00 [-4.00, -4.00] | -3.00 [-3.00, -3.00] |" in told
    assert "| 2 | 100 % [100, 100] | -3.00 [-3.00, -3.00] | -1.00 [-1.00, -1.00] |" in told
    found = json.loads((tmp_path / "headline.json").read_text())
    assert found["right_guesses_last"]["value"] == 0.75
    assert found["right_guesses_last"]["low"] < 0.75 < found["right_guesses_last"]["high"]
    assert found["first_choice_own_hints"]["value"] == 0.25
    assert found["right_guesses_as_attacker"] == {"value": 0.0, "low": 0.0, "high": 0.0}
    assert found["right_guesses_as_defender"]["value"] == 0.75
    assert "as defender with imitated, minus imitated with itself: +75 points" in told


def test_games_with_the_expert_are_rows_where_they_were_played() -> None:
    lines = taught.tables([record(1, 3, taught.SEATS + taught.WITH_EXPERT), record(2, 4)])
    rows = {tuple(cells[:2]): cells for line in lines if len(cells := line.strip("| ").split(" | ")) == 8}
    assert rows["expert", "taught"][2:4] == ["4", "75 % [25, 100]"]
    assert rows["expert", "taught"][-1] == "75 - %", "an earlier seed's record has none"
    assert rows["imitated", "expert"][3] == "0 % [0, 0]"
    assert list(rows)[1:] == list(taught.SEATS + taught.WITH_EXPERT)


def test_seeds_that_differ_widen_an_interval() -> None:
    """Words alone would say that the mean of 0.5 is sure, if in one seed all are found, and in the other none."""
    both = [Gain(f"{seed}/{word}", float(seed == 1)) for seed in (1, 2) for word in WORDS]
    assert taught.estimate(both) == {"value": 0.5, "low": 0.0, "high": 1.0}


def test_a_seed_is_trained_played_and_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With what trains, plays and measures replaced: what each is asked, and the record."""
    asked: list[list[str]] = []
    run = tmp_path / "seed-7"
    rounds = ["3"]

    def train(config: str, folder: Path, overrides: Sequence[str]) -> None:
        asked.append([config, str(folder), *overrides])
        folder.mkdir(exist_ok=True)
        (folder / "config.yaml").write_text(f"model: m\nself_play: {{rounds: {rounds[-1]}}}\n")
        (folder / "metrics.jsonl").write_text("")

    def play(command: Sequence[str]) -> None:
        asked.append(list(command))
        Path(command[command.index("--out") + 1]).write_text(json.dumps(record(7, 2)["matches"]))

    monkeypatch.setattr(taught, "played", lambda run, number: [["river", "tied game", -2.0, float(-number)]])
    monkeypatch.setattr(taught, "train", train)
    monkeypatch.setattr(taught, "called", play)
    monkeypatch.setattr(taught, "of_run", lambda run, stage, count: {stage: [Gain("river", float(count))]})
    taught.run_seed(tmp_path, 7, ["self_play.rounds=3"])
    assert asked[0] == [taught.CONFIG, str(run), "seed=7", "self_play.rounds=3"]
    assert asked[1][:2] == ["match", str(run / "config.yaml")]
    assert f"taught={run / 'models' / 'spag-3'}" in asked[1]
    assert asked[2] == [*asked[1], "--player", "expert=scripted", "--against", "expert"]
    kept = json.loads((tmp_path / "7.json").read_text())
    assert kept["heard"] == {"spag-3": [["river", 120.0, True]]}
    assert kept["matches"] == record(7, 2)["matches"]
    assert [games[0][3] for games in kept["rounds"].values()] == [-1.0, -2.0, -3.0]
    rounds.append("5")
    taught.run_seed(tmp_path, 7, [])
    files = [call[call.index("--out") + 1] for call in asked if "--out" in call]
    assert len(set(files)) == 2, "the matches of the third round are not those of the fifth"


def test_both_models_of_a_run_of_two_policies_are_a_player(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def train(config: str, folder: Path, overrides: Sequence[str]) -> None:
        folder.mkdir()
        (folder / "config.yaml").write_text("model: m\npolicies: separate\nself_play: {rounds: 2}\n")
        (folder / "metrics.jsonl").write_text("")

    def play(command: Sequence[str]) -> None:
        asked.extend(command)
        Path(command[command.index("--out") + 1]).write_text("[]")

    monkeypatch.setattr(taught, "train", train)
    monkeypatch.setattr(taught, "called", play)
    monkeypatch.setattr(taught, "played", lambda run, number: [])
    monkeypatch.setattr(taught, "of_run", lambda run, stage, count: {})
    taught.run_seed(tmp_path, 7, [])
    models = tmp_path / "seed-7" / "models"
    assert f"taught={models / 'spag-2-attacker'},{models / 'spag-2-defender'}" in asked
    assert f"imitated={models / 'imitated-attacker'},{models / 'imitated-defender'}" in asked


def test_the_games_of_a_round_are_read_with_what_the_listener_knew(tmp_path: Path) -> None:
    def of(*known: float | None) -> Episode:
        played = game(0, Outcome.TIED, num_turns=len(known))
        turns = [replace(turn, listener_logprob=each) for turn, each in zip(played.turns, known, strict=True)]
        return replace(played, turns=tuple(turns), scenario="river")

    log = EpisodeLog(tmp_path / "episodes" / "spag-2.log")
    for episode in (of(-9.0, -5.0, None, -2.0), of(-9.0)):
        log.append(encode(episode))
    log.close()
    assert taught.played(tmp_path, 2) == [("river", "tied game", -5.0, -2.0), ("river", "tied game", None, None)]


def test_without_a_record_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["taught", "tables", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="no record of a finished seed"):
        taught.main()
    assert not list(tmp_path.iterdir())

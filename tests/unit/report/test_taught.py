"""benchmarks/taught.py: what its tables and its headline say of records."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import taught
from spag_ray.game.rules import Outcome

WORDS = ("river", "piano", "lamp", "tiger")


def record(seed: int, num_right: int) -> dict[str, Any]:
    """Of four words; the last stage names so many of them, whoever gives the hints, and the imitated model none."""
    matches = []
    for attacker, defender in taught.SEATS:
        right = num_right if defender == taught.LAST else 0
        ends = [Outcome.DEFENDER_WINS] * right + [Outcome.TIED] * (len(WORDS) - right)
        games = [[word, str(end), 8] for word, end in zip(WORDS, ends, strict=True)]
        matches.append({"game": "taboo", "attacker": attacker, "defender": defender, "games": games})
    heard = {
        "first_choice_own_hints": [[word, float(word == "river"), True] for word in WORDS],
        "p_where_it_claims": [],
    }
    return {"seed": seed, "seconds": 120.0, "matches": matches, "heard": heard}


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
    rows = {tuple(cells[:2]): cells for line in told.splitlines() if len(cells := line.strip("| ").split(" | ")) == 7}
    assert rows["taught", "taught"][2:4] == ["8", rows["imitated", "taught"][3]]
    assert rows["taught", "taught"][3].startswith("75 % [")
    assert rows["taught", "imitated"][3] == "0 % [0, 0]"
    assert rows["taught", "imitated"][5] == "100 % [100, 100]", "ties"
    found = json.loads((tmp_path / "headline.json").read_text())
    assert found["right_guesses_last"]["value"] == 0.75
    assert found["right_guesses_last"]["low"] < 0.75 < found["right_guesses_last"]["high"]
    assert found["first_choice_own_hints"]["value"] == 0.25
    assert found["score_imitated"]["value"] == 0.6875, "ties as the attacker; as the defender 6 of 8 won, 2 tied"


def test_without_a_record_nothing_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["taught", "tables", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="no record of a finished seed"):
        taught.main()
    assert not list(tmp_path.iterdir())

"""benchmarks/contest.py: what it trains and plays, and what its tables and its headline say of matches."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import contest
from benchmarks.random_payoffs import drawn
from spag_ray.errors import InputError
from spag_ray.game.rules import Outcome
from spag_ray.results.matches import Game, Match
from spag_ray.training_data.estimators import Trajectory, check_estimator

WORDS = [f"word{number}" for number in range(8)]


def match(attacker: str, defender: str, outcome: Outcome) -> Match:
    games = [Game(word, outcome, 8) for word in WORDS]
    return Match(attacker=attacker, defender=defender, games=tuple(games))


def of_seed(end: Outcome) -> list[Match]:
    """The contest's games in both seats: as attacker they end so, as defender in ties."""
    others = ("imitated", "taught", "longer-imitated", "random-payoffs")
    return [
        *(match("contest", other, end) for other in others),
        *(match(other, "contest", Outcome.TIED) for other in others),
    ]


def test_scores_of_all_seeds_are_added_to_the_headline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed, end in ((3, Outcome.ATTACKER_WINS), (4, Outcome.TIED)):
        record = json.dumps([each.as_json() for each in of_seed(end)])
        (tmp_path / f"contest-{seed}.json").write_text(record)
    (tmp_path / "headline.json").write_text('{"right_guesses_last": {"value": 0.4}}')
    monkeypatch.setattr(sys, "argv", ["contest", "tables", "--out", str(tmp_path)])
    contest.main()
    rows = {
        cells[0]: cells
        for line in capsys.readouterr().out.splitlines()
        if len(cells := line.strip("| ").split(" | ")) == 8
    }
    assert rows["imitated"][1].startswith("0.62 ["), "the mean of 0.75 and 0.5"
    assert rows["imitated"][2].startswith("0.75 [")
    assert rows["imitated"][3].startswith("0.50 [")
    assert rows["imitated"][4:] == ["0 %", "50 %", "50 %", "0 %"]
    found = json.loads((tmp_path / "headline.json").read_text())
    assert found["right_guesses_last"] == {"value": 0.4}, "of the taught models, kept"
    assert found["score_imitated"]["value"] == 0.625
    assert {"score_tokens_matched", "score_random_payoffs"} < found.keys()


def test_without_records_it_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["contest", "tables", "--out", str(tmp_path)])
    with pytest.raises(SystemExit, match="no record"):
        contest.main()


def test_controls_have_as_many_tokens_and_rounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="first python -m benchmarks"):
        contest.run_seed(tmp_path, 3, [])
    (tmp_path / "seed-3").mkdir()
    (tmp_path / "seed-3" / "ended.json").write_text("{}")
    (tmp_path / "seed-3" / "config.yaml").write_text(
        "policies: separate\nself_play: {rounds: 10}\nimitation: {games: 100}\n"
    )
    trained: dict[str, Any] = {}
    played: list[list[str]] = []

    def train(_: str, run: Path, overrides: list[str]) -> None:
        trained[run.name] = overrides
        rounds = next((each.split("=")[1] for each in reversed(overrides) if each.startswith("self_play.rounds")), "6")
        run.mkdir()
        (run / "config.yaml").write_text(f"policies: separate\nself_play: {{rounds: {rounds}}}\n")

    def tokens(run: Path) -> dict[str, int]:
        is_first = run.name == "seed-3"
        return (
            {"imitated-attacker": 600, "imitated-defender": 400, "spag-1-attacker": 300}
            if is_first
            else {"spag-1": 201}
        )

    monkeypatch.setattr(contest, "train", train)
    monkeypatch.setattr(contest, "target_tokens", tokens)

    def called(command: list[str]) -> None:
        played.append(command)
        Path(command[command.index("--out") + 1]).write_text("[]")

    monkeypatch.setattr(contest, "called", called)
    contest.run_seed(tmp_path, 3, ["learner.num_cpus=1"])
    assert f"seat_models.attacker={tmp_path}/seed-3/models/spag-10-attacker" in trained["contest-3"]
    assert f"seat_models.attacker={tmp_path}/seed-3/models/spag-10-attacker" in trained["random-payoffs-3"]
    assert trained["random-payoffs-3"][-1] == "objective.information_gain=0", "by no reward of its own"
    assert f"seat_models.defender={tmp_path}/seed-3/models/imitated-defender" in trained["longer-imitated-3"]
    assert '"games":51,' in "".join(trained["longer-imitated-3"]), "501 of 1,000 tokens"
    assert all({"seed=3", "learner.num_cpus=1"} < {*each} for each in trained.values())
    (command,) = played
    players = [each for each in command if "=" in each]
    assert f"contest={tmp_path}/contest-3/models/spag-6-attacker,{tmp_path}/contest-3/models/spag-6-defender" in players
    assert f"longer-imitated={tmp_path}/longer-imitated-3/models/imitated-attacker," in "".join(players)
    assert command[-2:] == ["--against", "contest"]
    assert (tmp_path / "contest-3.json").read_text() == "[]", "once all is played"


def test_drawn_payoffs_have_nothing_to_do_with_real_ones() -> None:
    check_estimator(drawn, "drawn")
    lost, won = ([Trajectory(f"w{n // 8}", 0, payoff, (5, 6)) for n in range(400)] for payoff in (-1.0, 1.0))
    advantages = [each[0] for each in drawn(lost)]
    assert advantages == [each[0] for each in drawn(won)]
    assert abs(sum(advantages)) < 1e-6, "RLOO's of a group sum to 0"
    assert sum(each > 0 for each in advantages) in range(150, 250)

"""A tiny policy that is paid for ties falls silent: nobody claims, nobody says the word. The alarm comes, and the run
does what it is told to."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from cluster.commands.train import run_training
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.errors import CollapseError
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.matches import read_matches
from tests.support.runs import quiet, records_of, tiny_run

pytestmark = pytest.mark.usefixtures("local_ray")


def falling_silent(model: Path, words: Path, **changes: Any) -> RunConfig:
    evaluation = {"games": 24, "against_games": 4, "could_have_known": False}
    return tiny_run(
        model,
        words,
        engine={"kind": "transformers", "num_cpus": 0.25},
        game={"payoffs": {"tie": [1.0, 1.0], "attacker_breach": [-1.0, None], "defender_breach": [None, -1.0]}},
        objective={"learn_from": "both", "kl_coeff": 0.0},
        self_play={"rounds": 3, "games_per_round": 32, "learning_rate": 1e-2, **changes.pop("self_play")},
        evaluation={**evaluation, **changes.pop("evaluation")},
        **changes,
    )


def players_in(log: Path) -> list[dict[Role, str]]:
    """{seat: who said something in it} of each game."""
    return [{turn.role: turn.policy for turn in game.turns} for game in read_log(log)]


def ties_of(folder: Path, stage: str) -> int:
    games = read_log(folder / "episodes" / f"eval-{stage}.log")
    return sum(game.verdict.outcome is Outcome.TIED for game in games)


@pytest.mark.long  # a run, twice
@pytest.mark.timeout(400)
def test_a_run_stopped_by_a_collapse_resumes_with_opponents(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    evaluation = {"against": ("base", "imitated")}
    config = falling_silent(tiny_model, words, self_play={"on_collapse": "stop"}, evaluation=evaluation)
    with pytest.raises(CollapseError, match=r"spag-2: ties .*--resume .* -o self_play\.on_collapse=warn"):
        run_training(config, folder, quiet())
    ended = json.loads((folder / "ended.json").read_text())
    assert ended["ended"] == "stopped"
    assert ended["reason"].startswith("spag-2: ties ")
    assert not (folder / "models" / "spag-3").exists()
    (stopped,) = (line for line in records_of(folder, "collapse") if line["is_alarm"])
    kept = {log.name: log.read_bytes() for log in (folder / "episodes").glob("*.log")}

    mix = {"on_collapse": "mix", "mix_share": 0.5}
    console = Console(record=True, width=200)
    run_training(falling_silent(tiny_model, words, self_play=mix, evaluation=evaluation), folder, console, resume=True)
    assert all((folder / "episodes" / name).read_bytes() == data for name, data in kept.items())

    counts = [ties_of(folder, stage) for stage in ("imitated", "spag-1", "spag-2")]
    alarms = [line for line in records_of(folder, "collapse") if line["stage"] == "spag-2" and line["is_alarm"]]
    alarm = next(line for line in alarms if line["action"] == "mix")
    assert (alarm["figure"], alarm["before"], alarm["mix_ratio"]) == ("ties", "imitated", 0.5)
    assert (stopped["figure"], stopped["action"], stopped["mix_ratio"]) == ("ties", "stop", 0.0)
    assert alarm["value"] == stopped["value"] == pytest.approx(counts[2] / 24, abs=1e-4)
    assert alarm["low"] < counts[0] / 24 < alarm["high"] < min(counts[1:]) / 24
    assert all(line["stage"] != "spag-1" for line in records_of(folder, "collapse"))
    line = r"collapse: spag-2: ties .*; frozen opponents play 50% of the next round's games"
    assert re.search(line, console.export_text().replace("\n", ""))

    # Each stage met those who were frozen by then, once, and the last of these matches is the one at the run's end.
    met = [(match.attacker, match.defender) for match in read_matches(folder / "matches.json")]
    stages = ("imitated", "spag-1", "spag-2", "spag-3")
    pairs = {(stage, "base") for stage in stages} | {(stage, "imitated") for stage in stages[1:]}
    assert len(met) == len(set(met))
    assert set(met) == pairs | {pair[::-1] for pair in pairs} | {(stage, stage) for stage in ("base", *stages)}
    # Evaluations of spag-2 were read from their logs by the resumed run, which counts them again.
    played = [line["stage"] for line in records_of(folder, "play") if not re.search("[-@]spag-2", line["stage"])]
    assert len(played) == len(set(played))
    for name, attacker, defender in (
        ("spag-3@imitated", "policy", "imitated-policy"),
        ("base@spag-1", "base-policy", "policy"),
    ):
        games = players_in(folder / "episodes" / f"match-{name}.log")
        seats = {Role.ATTACKER: attacker, Role.DEFENDER: defender}
        assert len(games) == 4
        assert all(game.items() <= seats.items() for game in games)

    before, after = (players_in(folder / "episodes" / f"{stage}.log") for stage in ("spag-2", "spag-3"))
    assert all(set(game.values()) == {"policy"} for game in before)
    mixed = [game for game in after if set(game.values()) != {"policy"}]
    assert 8 <= len(mixed) <= 24
    assert {seat for game in mixed for seat in game if game[seat] != "policy"} == set(Role)
    assert {name for game in mixed for name in game.values()} == {"policy", "base-policy", "imitated-policy"}
    learned = sum(line["decided"] for line in records_of(folder, "samples") if line["what"] == "round 3")
    assert 0 < learned <= 32

    page = (folder / "report.html").read_text()
    assert "interval compared with" in page

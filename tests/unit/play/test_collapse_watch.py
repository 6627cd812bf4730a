"""What a run does about a collapse: it warns, lets frozen opponents play until it is over, or stops."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.monitor.status_board import StatusBoard
from cluster.schedules.collapse_watch import CollapseWatch
from cluster.tracking.recorder import Recorder
from spag_ray.config.loading import parse_config
from spag_ray.errors import CollapseError
from spag_ray.game.rules import Outcome
from spag_ray.results.game_names import UNKNOWN, GameNames, names_by_game
from spag_ray.results.lines import StepLine, StepReport
from spag_ray.results.matches import Game, Match
from spag_ray.stages import BASE, IMITATED, Stage

GAMES = 40


class Watched:
    """A CollapseWatch of a run whose stages, from the imitated one on, tie so many of 40 games."""

    def __init__(self, folder: Path, ties: tuple[int, ...], **config: Any) -> None:
        folder.mkdir(exist_ok=True)
        against = {"evaluation": {"against": ["base"]}}
        self.config = parse_config(against | config)
        first = IMITATED if self.config.imitation.enabled else BASE
        self.stages = [first, *map(Stage.of_round, range(1, len(ties)))]
        matches: Any = SimpleNamespace(results=[tied(*each) for each in zip(self.stages, ties, strict=True)])
        self.recorder = Recorder(folder)
        self.status = StatusBoard(lambda: 1, GameNames())
        self.watch = CollapseWatch(self.config, folder, matches, self.recorder, self.status, UNKNOWN)
        self.folder = folder

    def looks(self) -> list[float]:
        """The share of frozen opponents after each stage."""
        shares = []
        for stage in self.stages:
            self.watch.check(stage)
            shares.append(self.watch.mix_share)
        return shares

    @property
    def lines(self) -> list[tuple[str, bool, str]]:
        """(stage, whether it is an alarm, action) of metrics.jsonl."""
        lines = map(json.loads, (self.folder / "metrics.jsonl").read_text().splitlines())
        return [(line["stage"], line["is_alarm"], line["action"]) for line in lines if line["kind"] == "collapse"]

    @property
    def notes(self) -> tuple[str, ...]:
        return self.status.progress(False).notes


def tied(stage: Stage, ties: int) -> Match:
    outcomes = [Outcome.TIED] * ties + [Outcome.ATTACKER_WINS] * (GAMES - ties)
    return Match(str(stage), str(stage), tuple(Game("river", outcome, 4) for outcome in outcomes))


def doing(action: str, **self_play: Any) -> dict[str, Any]:
    return {"self_play": {"rounds": 5, "on_collapse": action, **self_play}}


def test_warned_once_and_said_when_it_is_over(tmp_path: Path) -> None:
    run = Watched(tmp_path, (8, 30, 36, 36, 8), **doing("warn"))
    assert run.looks() == [0, 0, 0, 0, 0]
    assert run.lines == [("spag-2", True, "warn"), ("spag-4", False, "warn")]
    assert run.notes == (
        "collapse: spag-2: ties 0.90, the second stage outside 0.09 to 0.40, which chance allows after imitated",
        "spag-4: ties 0.20, inside 0.02 to 0.38, which chance allows after imitated, again",
    )


def test_frozen_opponents_play_from_the_alarm_until_it_is_over(tmp_path: Path) -> None:
    run = Watched(tmp_path, (8, 30, 36, 36, 8), **doing("mix", mix_share=0.4))
    assert run.looks() == [0, 0, 0.4, 0.4, 0]
    assert run.notes[0].endswith("; frozen opponents play 40% of the next round's games")
    assert run.notes[1].endswith("; frozen opponents play 0% of the next round's games")


def test_a_run_that_is_resumed_comes_to_the_same_share_and_says_nothing_twice(tmp_path: Path) -> None:
    before = Watched(tmp_path, (8, 30, 36), **doing("mix"))
    assert before.looks()[-1] == 0.25
    before.recorder.close()
    after = Watched(tmp_path, (8, 30, 36), **doing("mix"))
    after.watch.check(after.stages[-1])
    assert after.watch.mix_share == 0.25
    assert len(after.lines) == 1
    assert len(after.notes) == 1, "who watches the new attempt is told"


def test_a_run_stops_at_the_alarm_and_again_where_it_is_resumed_to_stop(tmp_path: Path) -> None:
    run = Watched(tmp_path, (8, 30, 36, 36), **doing("stop"))
    for _ in range(2):
        with pytest.raises(
            CollapseError, match=r"^spag-2: ties 0\.90, the second stage outside .*; self_play\.on_collapse: stop ends"
        ):
            run.looks()
    assert run.lines == [("spag-2", True, "stop")]
    run.watch.check(run.stages[3])  # it went on with `warn` for a round: the alarm is an old one


def test_after_the_last_round_there_is_nothing_to_stop(tmp_path: Path) -> None:
    run = Watched(tmp_path, (8, 30, 36), **doing("stop", rounds=2))
    run.looks()
    assert run.lines == [("spag-2", True, "stop")]


def test_without_the_key_nothing_is_looked_at(tmp_path: Path) -> None:
    run = Watched(tmp_path, (8, 30, 36), self_play={"rounds": 5})
    assert run.looks() == [0, 0, 0]
    assert run.lines == []
    assert run.notes == ()


def test_the_base_model_counts_where_self_play_begins_with_it(tmp_path: Path) -> None:
    from_base = Watched(tmp_path / "base", (8, 30, 36), imitation={"enabled": False}, **doing("warn"))
    from_base.looks()
    assert from_base.lines == [("spag-2", True, "warn")]
    imitated = Watched(tmp_path / "imitated", (8, 30, 36), **doing("warn"))
    imitated.watch.check(BASE)
    assert imitated.lines == []


def test_the_entropy_of_rounds_is_looked_at_and_that_of_imitation_is_not(tmp_path: Path) -> None:
    run = Watched(tmp_path, (8, 8, 8, 8), **doing("warn"))
    for stage, entropy in (("imitated", 9.0), ("spag-1", 3.0), ("spag-2", 1.0), ("spag-3", 1.0)):
        for number in range(1, 5):
            run.recorder.record(StepLine(stage, "policy", StepReport(number, entropy=entropy + 0.1 * number)))
        run.watch.check(Stage.parse(stage))
    assert run.lines == [("spag-3", True, "warn")]
    assert "entropy 1.25" in run.notes[0]
    assert run.notes[0].endswith("which chance allows after spag-1")


def test_figures_of_several_games_are_watched_game_by_game(tmp_path: Path) -> None:
    games = [{"name": "taboo", "share": 0.5}, {"name": "kuhn", "share": 0.5}]
    config = parse_config({"games": games, "prompts": "lines", "self_play": {"on_collapse": "warn"}})
    stages = [IMITATED, Stage.of_round(1), Stage.of_round(2)]
    found = [
        replace(tied(stage, count if game == "kuhn" else 8), game=game)
        for stage, count in zip(stages, (8, 36, 36), strict=True)
        for game in ("taboo", "kuhn")
    ]
    matches: Any = SimpleNamespace(results=found)
    status = StatusBoard(lambda: 1, GameNames())
    watch = CollapseWatch(config, tmp_path, matches, Recorder(tmp_path), status, names_by_game(config))
    for stage in stages:
        watch.check(stage)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert {line["figure"] for line in lines} == {"kuhn: ties"}

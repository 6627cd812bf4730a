"""What is learned in each stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster.learning.stage_samples import StageSamples
from cluster.tracking.recorder import Recorder
from spag_ray.config.run import RunConfig
from spag_ray.errors import InputError
from spag_ray.game.rules import Outcome, Role
from spag_ray.stages import IMITATED, Stage
from spag_ray.training_data.rewards import RoleWindow
from tests.support.episodes import game

GAMES = [game(0, Outcome.ATTACKER_WINS), game(1, Outcome.DEFENDER_WINS), game(2, Outcome.TIED)]


def samples(folder: Path, learning: str = "p", **config: Any) -> StageSamples:
    nobody: Any = None
    return StageSamples(RunConfig.model_validate(config), nobody, nobody, {learning}, Recorder(folder))


def test_self_play_learns_decided_games_at_the_temperature_they_were_sampled_at(tmp_path: Path) -> None:
    made = samples(tmp_path, sampling={"temperature": 0.8}, self_play={"batch_games": 7, "learning_rate": 2e-5})
    stage = made.self_play(Stage.of_round(1), GAMES, "round 1", [], None)
    assert [each.role for each in stage.games] == list(Role)
    assert (stage.stage, stage.method, stage.batch_games, stage.learning_rate) == (
        Stage.of_round(1),
        "self_play",
        7,
        2e-5,
    )
    assert stage.temperature == 0.8
    published = samples(tmp_path, objective={"name": "published"}, sampling={"temperature": 0.8})
    assert published.self_play(Stage.of_round(1), GAMES, "round 1", [], None).temperature == 1.0


def test_only_the_turns_of_policies_that_learn_are_learned(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="round 1: none of 3 games"):
        samples(tmp_path, learning="another").self_play(Stage.of_round(1), GAMES, "round 1", [], None)


def test_a_round_without_a_decided_game_ends_with_advice_and_a_streams_version_does_not(tmp_path: Path) -> None:
    made = samples(tmp_path)
    with pytest.raises(InputError, match=r"round 2: none of 1 games was won by either side.*imitation"):
        made.self_play(Stage.of_round(2), GAMES[2:], "round 2", [], None)
    assert made.self_play(Stage.of_round(2), GAMES[2:], "spag-2", [], None, RoleWindow(8)).games == []


def test_imitation_takes_the_experts_games(tmp_path: Path) -> None:
    stage = samples(tmp_path, imitation={"batch_games": 3}).imitation(GAMES)
    assert (stage.stage, stage.method, stage.batch_games, len(stage.games)) == (IMITATED, "imitation", 3, 2)
    assert stage.temperature == 1.0 and stage.sft == []


def test_imitation_of_both_sides_takes_the_losers_turns_too(tmp_path: Path) -> None:
    stage = samples(tmp_path, imitation={"learn_from": "both"}).imitation(GAMES)
    assert [[turn.role for turn in each.turns] for each in stage.games] == [list(Role) * 2] * 2

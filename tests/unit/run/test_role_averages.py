"""Averages of each role of each game: what is trained with them, and how a checkpoint keeps them."""

import json
from dataclasses import asdict
from typing import Any

from cluster.run.checkpoint import RoleAverages, RunState
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.game.rules import Role

MOVING = {"objective": {"baseline": "moving", "learn_from": "both"}, "prompts": "lines"}


def two(**kuhn: Any) -> RunConfig:
    games = [{"name": "taboo", "share": 0.5}, {"name": "kuhn", "share": 0.5, "objective": kuhn}]
    return parse_config({"games": games, **MOVING})


def restored(state: RunState) -> RunState:
    return RunState(**json.loads(json.dumps(asdict(state))))


def test_each_role_of_each_game_has_a_moving_average_of_its_own() -> None:
    averages = RoleAverages.saved_in(RunState(), two())
    averages.baselines["kuhn"].update([{Role.ATTACKER: 2.0, Role.DEFENDER: -2.0}])
    averages.windows["taboo"].weights([Role.ATTACKER, Role.DEFENDER])
    assert averages.baselines["kuhn"].values[Role.ATTACKER] == (1 - 0.95) * 2.0
    assert averages.baselines["taboo"].values == {Role.ATTACKER: 0.0, Role.DEFENDER: 0.0}
    again = RoleAverages.saved_in(restored(averages.added_to(RunState())), two())
    assert {k: b.values for k, b in again.baselines.items()} == {k: b.values for k, b in averages.baselines.items()}
    assert (again.windows["taboo"].winners, again.windows["kuhn"].winners) == ("ad", "")


def test_a_game_without_a_moving_baseline_has_none() -> None:
    averages = RoleAverages.saved_in(RunState(), two(baseline="scenario"))
    assert list(averages.baselines) == ["taboo"]
    assert averages.added_to(RunState()).baselines == {"taboo": {"attacker": 0.0, "defender": 0.0}}


def test_a_run_of_one_game_keeps_them_by_its_name() -> None:
    state = RunState(baselines={"taboo": {"attacker": 0.25, "defender": -0.5}}, role_wins={"taboo": "aad"})
    averages = RoleAverages.saved_in(state, parse_config(MOVING))
    assert averages.baselines["taboo"].values == {Role.ATTACKER: 0.25, Role.DEFENDER: -0.5}
    assert averages.added_to(RunState()) == state
    assert RoleAverages.saved_in(RunState(), RunConfig()).added_to(RunState()) == RunState()


def test_averages_move_and_windows_reach_as_far_as_is_configured() -> None:
    objective = {"baseline": "moving", "learn_from": "both", "baseline_decay": 0.5}
    averages = RoleAverages.saved_in(
        RunState(role_wins={"taboo": "aaa"}),
        parse_config({"objective": objective, "stream": {"role_weight_window": 4}}),
    )
    averages.baselines["taboo"].update([{Role.ATTACKER: 1.0, Role.DEFENDER: None}])
    assert averages.baselines["taboo"].values == {Role.ATTACKER: 0.5, Role.DEFENDER: 0.0}
    averages.windows["taboo"].weights([Role.DEFENDER, Role.DEFENDER])
    assert averages.windows["taboo"].winners == "aadd"


def test_several_games_without_wins_or_averages_leave_a_state_as_it_was() -> None:
    plain = two(baseline="none")
    plain = plain.model_copy(update={"objective": plain.objective.model_copy(update={"baseline": "none"})})
    assert RoleAverages({}, RoleAverages.saved_in(RunState(), plain).windows).added_to(RunState()) == RunState()

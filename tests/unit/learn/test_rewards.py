"""Decayed shares, role weights, and parity with the golden rewards."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spag_ray.errors import InputError
from spag_ray.game.rules import Role
from spag_ray.training_data.rewards import RoleWindow, assign_rewards, decayed_shares, role_weights

GOLDEN = json.loads((Path(__file__).resolve().parents[2] / "golden" / "rewards.json").read_text())


@pytest.mark.parametrize("case", GOLDEN, ids=range(len(GOLDEN)))
def test_rewards_agree_with_the_published_ones(case: dict[str, Any]) -> None:
    samples = assign_rewards(case["episodes"], case["decay"])
    assert [(s["target"], s["role"]) for s in samples] == [(s["target"], s["role"]) for s in case["samples"]]
    for sample, published in zip(samples, case["samples"], strict=True):
        assert sample["reward"] == pytest.approx(published["reward"], abs=1e-9)
        assert sample["weight"] == pytest.approx(published["weight"], abs=1e-9)


@given(st.integers(1, 500), st.floats(1e-6, 1.0))
def test_shares_sum_to_one_and_never_fall(num_turns: int, decay: float) -> None:
    shares = decayed_shares(num_turns, decay)
    assert len(shares) == num_turns
    assert sum(shares) == pytest.approx(1.0)
    assert shares == sorted(shares)


def test_no_turn_has_no_share() -> None:
    assert decayed_shares(0, 0.8) == []


@pytest.mark.parametrize("decay", [0.0, -1.0, 1.5, float("nan")])
def test_a_decay_out_of_range_is_refused(decay: float) -> None:
    with pytest.raises(InputError, match="decay"):
        decayed_shares(3, decay)


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_both_roles_weigh_the_same_over_all_games(num_attacker_wins: int, num_defender_wins: int) -> None:
    weights = role_weights(num_attacker_wins, num_defender_wins)
    assert weights[Role.ATTACKER] * num_attacker_wins == pytest.approx(weights[Role.DEFENDER] * num_defender_wins)


def test_a_role_without_wins_weighs_nothing_and_a_cap_holds() -> None:
    assert role_weights(4, 0) == {Role.ATTACKER: 0.5, Role.DEFENDER: 0.0}
    assert role_weights(0, 0) == {Role.ATTACKER: 0.0, Role.DEFENDER: 0.0}
    assert role_weights(31273, 2700)[Role.DEFENDER] == pytest.approx(6.29, abs=0.01)
    assert role_weights(31273, 2700, cap=2.0)[Role.DEFENDER] == 2.0


def test_a_stream_weighs_roles_over_its_last_decided_games_and_over_its_whole_batch_at_least() -> None:
    window = RoleWindow(6)
    attacker, defender = Role.ATTACKER, Role.DEFENDER
    assert window.weights([attacker, attacker, None])[defender] == 0.0
    one = window.weights([attacker, defender, attacker])
    assert one == role_weights(4, 1), "the batch before counts too, a tie does not"
    assert window.weights([None]) == one
    assert window.weights([defender] * 3) == role_weights(2, 4), "older games have left"
    assert window.weights([attacker] * 7 + [defender]) == role_weights(7, 1)
    assert window.weights([], cap=2.0)[defender] == 2.0
    resumed = RoleWindow(6, window.winners)
    assert resumed.weights([defender]) == window.weights([defender])
    assert RoleWindow(6).weights([]) == {attacker: 0.0, defender: 0.0}

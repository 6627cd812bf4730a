"""Mixtures of versions that no version gains from."""

import random

import pytest

from spag_ray.results.meta_game import equilibrium


def test_no_version_gains_from_the_mixture() -> None:
    chance = random.Random(5)
    for size in (1, 2, 3, 8, 24):
        values = [[0.0] * size for _ in range(size)]
        for row in range(size):
            for column in range(row):
                values[row][column] = chance.uniform(-2, 2)
                values[column][row] = -values[row][column]
        shares = equilibrium(values)
        assert sum(shares) == pytest.approx(1)
        assert min(shares) >= 0
        for gains in values:
            assert sum(value * share for value, share in zip(gains, shares, strict=True)) <= 1e-9
        assert equilibrium(values) == shares


def test_a_version_that_beats_all_others_is_played_alone() -> None:
    assert equilibrium([[0, -1, -1], [1, 0, 0.1], [1, -0.1, 0]]) == pytest.approx([0, 1, 0])


def test_a_game_in_which_both_may_gain_is_refused() -> None:
    with pytest.raises(ValueError, match="has to lose"):
        equilibrium([[0, 1], [1, 0]])

"""The learning rate of a step: a warm-up, then a cosine to zero."""

import itertools

import pytest

from spag_ray.training_data.stage_spec import learning_rate_at


def test_the_learning_rate_rises_then_follows_a_cosine_to_zero() -> None:
    rates = [learning_rate_at(step, 100, 1.0, 0.03) for step in range(101)]
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[3] == pytest.approx(1.0)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[3:]))
    assert rates[100] == pytest.approx(0.0, abs=1e-3)


def test_a_warm_up_is_a_whole_number_of_steps_and_may_be_all_of_them() -> None:
    assert [learning_rate_at(step, 10, 1.0, 0.11) for step in range(3)] == pytest.approx([0.5, 1.0, 1.0]), "2 steps"
    assert [learning_rate_at(step, 2, 1.0, 1.0) for step in range(3)] == pytest.approx([0.5, 1.0, 1.0])


def test_the_learning_rate_stays_at_zero_beyond_the_last_step() -> None:
    assert [learning_rate_at(step, 10, 1.0, 0.0) for step in (10, 11, 15)] == pytest.approx([0.0] * 3)

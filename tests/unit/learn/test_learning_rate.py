"""The learning rate of a step: a warm-up, then a cosine to zero."""

from __future__ import annotations

import itertools

import pytest

from learners.learning_rate import learning_rate_at


def test_the_learning_rate_rises_then_follows_a_cosine_to_zero() -> None:
    rates = [learning_rate_at(step, 100, 1.0, 0.03) for step in range(101)]
    assert rates[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert rates[3] == pytest.approx(1.0)
    assert all(later <= earlier for earlier, later in itertools.pairwise(rates[3:]))
    assert rates[100] == pytest.approx(0.0, abs=1e-3)

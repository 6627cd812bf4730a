"""When a policy gets another engine, and when it lets one go."""

import pytest

from cluster.fleet.scaling import Load, Scaling
from spag_ray.config.engine import EngineRange


def scaling(**changes: float) -> Scaling:
    limits = {"min": 1, "max": 3, "grow_after_s": 10, "shrink_after_s": 30} | changes
    return Scaling(EngineRange.model_validate(limits), max_num_seqs=16)


def steps(of: Scaling, load: Load, times: range) -> list[int]:
    """The times at which an engine is added (positive) or let go (negative)."""
    return [step * at for at in times if (step := of.step(load, at))]


@pytest.mark.parametrize(
    ("load", "expected"),
    [
        (Load(1, 16), 1),  # turns wait in its queue
        (Load(1, 15), 0),
        (Load(3, 100), 0),  # there are as many as there may be
        (Load(0, 100), 0),  # the first is being replaced
        (Load(2, 8), -1),  # one engine has room for twice as many
        (Load(2, 9), 0),
        (Load(1, 0), 0),
        (Load(2, 0), 0),  # the learner works: nothing is known of the next round
        (Load(2, 31, learner_waits=0.5), 1),
        (Load(2, 9, learner_waits=0.5), 1),  # the learner waits, although no turn does
        (Load(2, 8, learner_waits=0.5), 0),  # there are too few games for another engine
        (Load(2, 40, learner_waits=0.1), 0),
        (Load(2, 0, learner_waits=0.0), -1),  # games wait for the learner
        (Load(2, 9, learner_waits=0.0), 0),
        (Load(2, 0, learner_waits=0.1), 0),
    ],
)
def test_what_a_load_asks_for(load: Load, expected: int) -> None:
    assert scaling(grow_after_s=0, shrink_after_s=0).step(load, 5.0) == expected


def test_a_need_has_to_last_and_starts_anew_after_each_step() -> None:
    busy = scaling()
    assert steps(busy, Load(1, 16), range(0, 25)) == [10, 21]
    assert steps(busy, Load(2, 8), range(30, 100)) == [-60, -91]


def test_a_need_that_ends_is_forgotten() -> None:
    once = scaling()
    assert steps(once, Load(1, 16), range(0, 9)) == []
    assert once.step(Load(1, 15), 9) == 0
    assert steps(once, Load(1, 16), range(10, 22)) == [20]

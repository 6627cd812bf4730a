"""Engines shared out over arenas."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cluster.rollout.shards import shares


@given(num_arenas=st.integers(1, 20), num_engines=st.integers(1, 600))
def test_arenas_get_equal_parts_and_every_engine_is_shared_out_once(num_arenas: int, num_engines: int) -> None:
    of_engines: Counter[int] = Counter()
    for arena in range(num_arenas):
        own = shares(arena, num_arenas, num_engines)
        assert own, "every arena has an engine"
        assert abs(sum(own.values()) - num_engines / num_arenas) < 1e-9
        assert all(0 < share <= 1 for share in own.values())
        of_engines.update(own)
    assert sorted(of_engines) == list(range(num_engines))
    assert all(abs(part - 1) < 1e-9 for part in of_engines.values())


@given(num_arenas=st.integers(1, 20), num_engines=st.integers(1, 600))
def test_few_engines_belong_to_two_arenas(num_arenas: int, num_engines: int) -> None:
    """As many as there are cuts."""
    pairs = sum(len(shares(arena, num_arenas, num_engines)) for arena in range(num_arenas))
    assert pairs <= num_engines + num_arenas - 1


def test_without_engines_nobody_has_one() -> None:
    assert shares(0, 3, 0) == {}

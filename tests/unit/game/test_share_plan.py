"""Which game each place has: the shares hold at any time, whatever was asked before."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from spag_ray.game.share_plan import SharePlan

SHARES = st.lists(st.integers(1, 20), min_size=2, max_size=5).map(lambda parts: [each / sum(parts) for each in parts])


@given(SHARES, st.integers(1, 200))
def test_of_any_first_places_each_game_has_its_share(shares: list[float], count: int) -> None:
    plan = SharePlan(shares)
    games = [plan.at(place)[0] for place in range(count)]
    assert all(abs(games.count(game) - share * count) < len(shares) for game, share in enumerate(shares))


@given(SHARES, st.lists(st.integers(0, 100), min_size=1))
def test_a_place_has_the_same_game_in_whatever_order_places_are_asked_for(
    shares: list[float], places: list[int]
) -> None:
    plan, fresh = SharePlan(shares), SharePlan(shares)
    in_order = [fresh.at(place) for place in range(101)]
    assert [plan.at(place) for place in places] == [in_order[place] for place in places]
    assert all(
        before == sum(game == other for other, _ in in_order[:place]) for place, (game, before) in enumerate(in_order)
    )


def test_one_game_has_every_place() -> None:
    assert SharePlan([1.0]).at(10**9) == (0, 10**9)

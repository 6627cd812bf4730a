"""Who sits where: seats of policies, of earlier versions, of the expert, and of guests."""

from types import SimpleNamespace
from typing import Any

from actors.endpoint_policy import Endpoint
from actors.policy import Sampling
from cluster.schedules.seating import Seating
from spag_ray.config.loading import parse_config
from spag_ray.game.rules import Role
from tests.support.decks import cards_of

CARDS = cards_of({"river": ["water", "boat"]})


def seating_of(*policies: Any, **config: Any) -> Seating:
    return Seating(parse_config(config), policies, "/models/of-the-run", CARDS)


def test_policies_that_learn_one_seat_sit_in_it_alone() -> None:
    policies = [SimpleNamespace(name=f"{role}-policy", roles={role}, model=f"/models/{role}") for role in Role]
    seats = seating_of(*policies, policies="separate", sampling={"temperature": 0.7, "max_new_tokens": 9}).self_play({})
    assert {name: (seat.pool, seat.policy, seat.model) for name, seat in seats.items()} == {
        str(role): (f"{role}-policy", f"{role}-policy", f"/models/{role}") for role in Role
    }
    assert {(seat.sampling.temperature, seat.sampling.max_new_tokens) for seat in seats.values()} == {(0.7, 9)}


def test_a_league_adds_seats_and_takes_none_away() -> None:
    policy = SimpleNamespace(name="policy", roles=set(Role), model="/models/x")
    seating = seating_of(policy)
    earlier = seating.engines_of("opponents", "spag-1", "/models/x", 1.0)
    seats = seating.self_play({"spag-1": earlier})
    assert set(seats) == {*map(str, Role), "spag-1"}
    assert seats["spag-1"].pool == "opponents"
    assert all(seats[str(role)].policy == "policy" for role in Role)


def test_a_guest_has_cards_or_an_endpoint() -> None:
    seating = seating_of(sampling={"temperature": 1.0, "max_new_tokens": 12})
    expert = seating.guest("expert", None, 0.3)
    assert (expert.cards, expert.endpoint, expert.sampling.temperature) == (CARDS, None, 0.3)
    assert expert.sampling.max_new_tokens == 12
    endpoint = Endpoint("http://127.0.0.1:1/v1", "tiny")
    served = seating.guest("served", endpoint, 0.3)
    assert (served.cards, served.endpoint, served.policy) == (None, endpoint, "served")
    assert seating.guest("fixed-0", endpoint, 1.0, "far").policy == "far"
    assert seating.expert().cards == CARDS
    assert seating.expert().policy == "scripted"


def test_players_of_every_kind_sample_as_the_run_does() -> None:
    seating = seating_of(sampling={"max_new_tokens": 12, "top_k": 50, "top_p": 0.9}, objective={"loss": "published"})
    own = seating.engines_of("policy", "policy", "/models/x", 0.5).sampling
    served = seating.guest("served", Endpoint("http://127.0.0.1:1/v1", "tiny"), 0.5).sampling
    assert own == served == Sampling(0.5, 12, 50, 0.9)


def test_scripted_players_draw_by_the_seed_of_the_run() -> None:
    seating = seating_of(seed=7)
    assert [each.sampling.seed for each in (seating.expert(), seating.guest("fixed", None, 1.0))] == [7, 7]

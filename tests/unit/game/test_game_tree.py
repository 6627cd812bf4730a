"""A game that is a small tree is measured by it."""

import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from spag_ray.errors import InputError
from spag_ray.game.game_form import verdict_of
from spag_ray.game.game_tree import TreeSolved
from spag_ray.game.protocol import Decision, Ruling, Solved, breach, tie, win


class Pennies(TreeSolved):
    """Matching pennies: both choose in secret, twice the stake if both choose tails."""

    seats, max_turns, is_exhaustive = ("even", "odd"), 1, True

    def scenarios(self) -> Sequence[str]:
        return ["coin"]

    def messages(self, seat: int, history: Sequence[str], scenario: str) -> Sequence[dict[str, str]]:
        return [{"role": "user", "content": "heads or tails?"}]

    def legal(self, history: Sequence[str], scenario: str) -> Sequence[str]:
        return ["heads", "tails"]

    def rule(self, history: Sequence[str], scenario: str) -> Ruling | None:
        if history[-1] not in ("heads", "tails"):
            return breach((len(history) - 1) % 2, payoffs=(-2.0, 2.0) if len(history) == 1 else (2.0, -2.0))
        if len(history) < 2:
            return None
        stake = 2.0 if tuple(history) == ("tails", "tails") else 1.0
        return win(0, payoffs=(stake, -stake)) if history[0] == history[1] else win(1)


def policy(first: float, second: float, legal: float = 1.0) -> list[dict[str, float]]:
    """How often each seat says tails."""
    return [{"heads": legal * (1 - share), "tails": legal * share} for share in (first, second)]


def test_nash_conv_is_0_at_the_optimum_alone() -> None:
    game = Pennies()
    assert isinstance(game, Solved)
    assert [(each.history, each.replies) for each in game.decisions()] == [
        ((), ("heads", "tails")),
        (("heads",), ("heads", "tails")),
    ], "the second seat cannot tell what the first one said"
    best = game.measure(policy(0.4, 0.4))
    assert best["nash_conv"] == pytest.approx(0, abs=1e-12)
    assert best["value"] == pytest.approx(0.2)
    # Against tails always the first seat gets 2, against heads always the second one gets 1 by tails.
    found = game.measure(policy(0.0, 1.0))
    assert found["value"] == pytest.approx(-1)
    assert found["nash_conv"] == pytest.approx((2 - -1) + (1 - 1))


def test_seats_may_play_different_policies() -> None:
    game = Pennies()
    tails, heads = policy(1.0, 1.0), policy(0.0, 0.0)
    assert game.value_between(tails, heads) == pytest.approx(-1)
    assert game.value_between(tails, tails) == pytest.approx(2)
    assert game.value_between(heads, policy(0.0, 0.25)) == pytest.approx(0.75 - 0.25)
    assert game.value_between(policy(0.4, 0.9), policy(0.1, 0.4)) == pytest.approx(0.2)


def test_replies_that_are_not_legal_count_as_the_game_pays_them() -> None:
    found = Pennies().measure([*policy(0.4, 0.4, legal=0.75)[:1], *policy(0.4, 0.4)[1:]])
    assert found["illegal"] == pytest.approx(0.125)
    assert found["worst_illegal"] == pytest.approx(0.25)
    assert found["value"] == pytest.approx(0.75 * 0.2 + 0.25 * -2)
    assert found["legal_nash_conv"] == pytest.approx(0, abs=1e-12)
    assert found["nash_conv"] == pytest.approx(0.25 * 2.2), "what the first seat would gain by legal replies"
    nothing = Pennies().measure([{}, {}])
    assert nothing["legal_nash_conv"] == pytest.approx(Pennies().measure(policy(0.5, 0.5))["nash_conv"])


@pytest.mark.parametrize("shares", [{"heads": 0.7, "tails": 0.7}, {"heads": -0.1, "tails": 1.0}])
def test_what_are_no_probabilities_is_refused(shares: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="1 together"):
        Pennies().measure([shares, shares])


class Twice(Pennies):
    """The first seat chooses twice in a row, and knows what it chose."""

    max_turns = 2

    def to_move(self, history: Sequence[str], scenario: str) -> int:
        return int(len(history) == 2)

    def messages(self, seat: int, history: Sequence[str], scenario: str) -> Sequence[dict[str, str]]:
        if seat == 1 or not history:
            return [{"role": "user", "content": "choose"}]
        return [
            {"role": "user", "content": "choose"},
            {"role": "assistant", "content": history[0]},
            {"role": "user", "content": "and again"},
        ]

    def rule(self, history: Sequence[str], scenario: str) -> Ruling | None:
        if history[-1] not in ("heads", "tails"):
            return tie()
        return win(0) if len(history) == 3 else None


def test_policies_are_mixed_by_how_likely_their_own_replies_lead_there() -> None:
    game = Twice()
    assert [each.history for each in game.decisions()] == [(), ("heads",), ("heads", "heads"), ("tails",)]
    always = [{"heads": 1.0, "tails": 0.0}] * 4
    never = [{"heads": 0.0, "tails": 1.0}] * 4
    rare = [{"heads": 0.25, "tails": 0.75}, *never[1:]]
    mixed = game.average([always, rare])
    assert mixed[0] == {"heads": 0.625, "tails": 0.375}
    assert mixed[1] == pytest.approx({"heads": 0.8, "tails": 0.2}), "1 to 0.25"
    assert mixed[2] == {"heads": 0.5, "tails": 0.5}, "the other seat's own replies"
    assert mixed[3] == {"heads": 0.0, "tails": 1.0}, "the first policy never comes there"
    assert game.average([always, always])[3] == always[3]


class TwiceBackwards(Twice):
    def order_of(self, decision: Decision) -> tuple[int, ...]:
        return (-len(decision.history),)


def test_a_game_may_have_its_decisions_in_another_order() -> None:
    """Then everything is told in it, and means what it meant."""
    game, plain = TwiceBackwards(), Twice()
    assert [each.history for each in game.decisions()] == [("heads", "heads"), ("heads",), ("tails",), ()]
    new_place = [3, 1, 0, 2]  # of each decision of the plain game

    def ordered(shares: list[dict[str, float]]) -> list[dict[str, float]]:
        return [shares[new_place.index(at)] for at in range(4)]

    policies = [
        [{"heads": legal * share, "tails": legal * (1 - share)} for share in shares]
        for legal, shares in ((0.9, (0.2, 0.6, 0.3, 0.1)), (1.0, (0.7, 0.4, 0.5, 0.0)))
    ]
    one, other = policies
    assert game.measure(ordered(one)) == pytest.approx(plain.measure(one), abs=1e-12)
    assert game.value_between(ordered(one), ordered(other)) == pytest.approx(plain.value_between(one, other), abs=1e-12)
    expected = ordered(list(map(dict, plain.average(policies))))
    for found, shares in zip(game.average([ordered(each) for each in policies]), expected, strict=True):
        assert found == pytest.approx(shares, abs=1e-12)


class Forgets(Twice):
    def messages(self, seat: int, history: Sequence[str], scenario: str) -> Sequence[dict[str, str]]:
        return [{"role": "user", "content": f"turn {len(history)}"}]


class Unpaid(Pennies):
    def rule(self, history: Sequence[str], scenario: str) -> Ruling | None:
        return breach(0) if history[-1] not in ("heads", "tails") else super().rule(history, scenario)


class Speechless(Pennies):
    def legal(self, history: Sequence[str], scenario: str) -> Sequence[str]:
        return ["heads", "tails"][: 2 - 2 * len(history)]


class Twofold(Pennies):
    def legal(self, history: Sequence[str], scenario: str) -> Sequence[str]:
        return ["heads", "tails", "heads"]


class Careless(Pennies):
    def legal(self, history: Sequence[str], scenario: str) -> Sequence[str]:
        return {0: ["heads", "tails"]}[len(history)]


class OnlyHeads(Pennies):
    def messages(self, seat: int, history: Sequence[str], scenario: str) -> Sequence[dict[str, str]]:
        return [{"role": "user", "content": f"{len(history)}: heads?"}]

    def legal(self, history: Sequence[str], scenario: str) -> Sequence[str]:
        return ["heads"]


class Endless(OnlyHeads):
    max_turns = 10_000

    def rule(self, history: Sequence[str], scenario: str) -> Ruling | None:
        return None if history[-1] == "heads" else breach((len(history) - 1) % 2, payoffs=(0.0, 0.0))


@pytest.mark.parametrize(
    ("game", "said"),
    [
        (Forgets, "but did other things"),
        (Unpaid, "without a payoff"),
        (Speechless, r"Speechless\.legal returns \[\] after \['heads'\] \(coin\); give every reply once, at least one"),
        (Careless, r"Careless.legal: it raises KeyError: 1 \(test_game_tree.py, line \d+; scenario 'coin', history"),
        (Endless, "Endless: more than 200,000 turns, or 300 in one game; it is too large to be solved"),
        (Twofold, r"Twofold\.legal returns \['heads', 'tails', 'heads'\] after \[\]"),
    ],
)
def test_a_game_that_is_no_such_tree_is_refused(game: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        game().decisions()


def test_a_large_game_is_refused_and_a_tree_does_not_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    game = Pennies()
    size = len(pickle.dumps(game))
    game.decisions()
    assert len(pickle.dumps(game)) == size
    monkeypatch.setattr("spag_ray.game.game_tree.MOST_NODES", 2)
    with pytest.raises(InputError, match="more than 2 turns"):
        Pennies().decisions()


class Waiting(OnlyHeads):
    """Nobody has to say anything but heads; after six turns the first seat would be paid."""

    max_turns = 2

    def rule(self, history: Sequence[str], scenario: str) -> Ruling | None:
        if history[-1] != "heads":
            return breach((len(history) - 1) % 2, payoffs=(0.0, 0.0))
        return win(0, payoffs=(1.0, -1.0)) if len(history) == 6 else None


def test_a_game_whose_turns_run_out_is_measured_as_it_is_played() -> None:
    game = Waiting()
    assert verdict_of(game, ["heads"] * 4, "coin") is not None, "tied"
    assert [len(each.history) for each in game.decisions()] == [0, 1, 2, 3]
    assert game.measure([{"heads": 1.0}] * 4)["value"] == 0

"""Which weights a run's engines are given for matches with earlier stages; whole runs are in test_collapse.py and
test_in_turn.py."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.schedules.frozen import FrozenOpponents
from cluster.schedules.seating import Seating
from cluster.types import Seat
from spag_ray.config.loading import parse_config
from spag_ray.game.rules import Role
from spag_ray.stages import BASE, IMITATED, Stage

RUN = Path("runs/one/models")


class Told:
    """In place of the run's publisher, matches and status: what they were told, in order. `fails`: a failing match."""

    def __init__(self, fails: str = "") -> None:
        self.events: list[Any] = []
        self.played: set[Stage] = set()
        self.seats: dict[str, tuple[Seat, Seat]] = {}
        self.fleet = SimpleNamespace(start=lambda model, pool, *_: self.events.append(("start", model, pool)))
        self._fails = fails

    def give(self, pool: str, saved: Any) -> None:
        self.events.append(("give", pool, saved))

    def forget(self, pool: str) -> None:
        self.events.append(("forget", pool))

    def of(self, stage: Stage) -> bool:
        return stage in self.played

    def play(self, attacker: Seat, defender: Seat, stage: Stage, num_games: int) -> None:
        name = "@".join(stage.seats)
        if name == self._fails:
            raise RuntimeError(name)
        self.played.add(stage)
        self.seats[name] = attacker, defender
        self.events.append(("play", name, num_games))

    def set_status(self, text: str) -> None:
        pass


def frozen(
    told: Any, names: tuple[str, ...] = ("policy",), objective: dict[str, Any] | None = None, **evaluation: Any
) -> FrozenOpponents:
    settings = {"evaluation": {"games": 8, "engines": "in_turn", **evaluation}, "objective": objective or {}}
    config = parse_config(settings)
    roles = {"policy": tuple(Role), "attacker": (Role.ATTACKER,), "defender": (Role.DEFENDER,)}
    policies: list[Any] = [
        SimpleNamespace(
            name=name, roles=roles[name], version=4, model="/base", saved=lambda stage, of=name: RUN / f"{stage}-{of}"
        )
        for name in names
    ]
    return FrozenOpponents(config, told, Seating(config, policies, "/base", {}), told, told)


def test_engines_take_all_players_of_an_evaluation_and_then_the_newest_weights_again() -> None:
    told = Told()
    frozen(told, against=("base", "imitated")).evaluate(Stage.of_round(2))
    newest = str(RUN / "spag-2-policy"), 4
    players = {None: newest, "base": ("/base", 0), "imitated": (str(RUN / "imitated-policy"), 0)}
    games = ("spag-2@base", "base@spag-2", "spag-2@imitated", "imitated@spag-2")
    assert told.events == [
        ("give", "policy", players),
        *(("play", pair, 8) for pair in games),
        ("give", "policy", {None: newest}),
        ("forget", "policy"),
    ]
    attacker, defender = told.seats["spag-2@imitated"]
    assert (attacker.pool, attacker.policy, attacker.adapter) == ("policy", "policy", None)
    assert (defender.pool, defender.policy, defender.adapter) == ("policy", "imitated-policy", "imitated")


def test_nothing_is_given_for_matches_that_were_played_or_have_no_opponent_yet() -> None:
    told = Told()
    told.played = {Stage.match("imitated", "base"), Stage.match("base", "imitated")}
    opponents = frozen(told, against=("base",))
    opponents.evaluate(BASE)
    opponents.evaluate(IMITATED)
    assert told.events == []
    told.played.pop()
    opponents.evaluate(IMITATED)
    assert [event[0] for event in told.events] == ["give", "play", "give", "forget"]


def test_each_policy_holds_the_players_of_its_own_seat() -> None:
    told = Told()
    frozen(told, ("attacker", "defender")).meet(Stage.of_round(1), [IMITATED], 3)
    given = {event[1]: event[2] for event in told.events[:2]}
    assert given == {
        name: {None: (str(RUN / f"spag-1-{name}"), 4), "imitated": (str(RUN / f"imitated-{name}"), 0)}
        for name in ("attacker", "defender")
    }
    attacker, defender = told.seats["imitated@spag-1"]
    assert (attacker.pool, attacker.policy, attacker.adapter) == ("attacker", "imitated-attacker", "imitated")
    assert (defender.pool, defender.policy, defender.adapter) == ("defender", "defender", None)


def test_after_an_error_replaced_engines_are_not_given_the_players_of_the_match() -> None:
    told = Told(fails="base@spag-1")
    with pytest.raises(RuntimeError):
        frozen(told, against=("base",)).evaluate(Stage.of_round(1))
    assert [event[0] for event in told.events] == ["give", "play", "forget"]


@pytest.mark.parametrize(
    ("listener", "model", "pool"),
    [
        (None, str(RUN / "imitated-defender"), "imitated-defender"),
        ("base", "/base", "base-defender"),
        ("FOLDER", "FOLDER", "listener"),
    ],
)
def test_a_listener_is_the_frozen_model_of_the_seat_that_guesses_or_one_of_a_folder(
    listener: str | None, model: str, pool: str, tiny_model: Path
) -> None:
    told = Told()
    given = {"information_gain": 0.1, "listener": str(tiny_model) if listener == "FOLDER" else listener}
    opponents = frozen(told, ("attacker", "defender"), objective=given, engines="own")
    seats = [opponents.listener() for _ in range(2)]
    expected = str(tiny_model.resolve()) if model == "FOLDER" else model
    assert told.events == [("start", expected, pool)], "once"
    assert [(seat.pool, seat.adapter) for seat in seats] == [(pool, None)] * 2
    assert seats[0].model == (expected if listener == "FOLDER" else "/base" if listener else model), "its tokenizer"


def test_a_listener_shares_the_engine_of_a_frozen_opponent_of_its_stage() -> None:
    told = Told()
    opponents = frozen(told, against=("base", "imitated"), objective={"information_gain": 0.1}, engines="own")
    opponents.evaluate(Stage.of_round(1))
    assert opponents.listener().pool == "imitated-policy"
    assert [event[2] for event in told.events if event[0] == "start"] == ["base-policy", "imitated-policy"]


def test_opponents_with_engines_of_their_own_keep_them() -> None:
    told = Told()
    opponents = frozen(told, against=("base",), engines="own")
    opponents.evaluate(IMITATED)
    opponents.evaluate(Stage.of_round(1))
    assert [event for event in told.events if event[0] != "play"] == [("start", "/base", "base-policy")]
    assert told.seats["base@spag-1"][0].pool == "base-policy"

"""Who plays whom, which versions are kept and drawn, and what becomes of results."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest

from actors.league import League, Opponents, PastVersion, players_of
from spag_ray.config.loading import parse_config
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.opponents import LeagueConfig
from spag_ray.errors import ConfigError
from spag_ray.game.rules import Outcome, Role
from spag_ray.results.ratings import WinMatrix
from spag_ray.training_data.samples import game_samples
from tests.support.episodes import game


def past(version: int) -> PastVersion:
    return PastVersion(version, {"policy": f"league/v{version}/policy"})


def league(**config: object) -> League:
    return League(LeagueConfig.model_validate({"past_share": 0.5} | config), seed=3)


def test_opponents_get_their_shares_and_the_learner_sits_in_both_seats_of_each_pair() -> None:
    opponents = Opponents(seed=1, shares=(("past-0", 0.3), ("fixed-0", 0.1)))
    pairs = Counter[str]()
    for pair in range(4000):
        first, second = opponents(2 * pair), opponents(2 * pair + 1)
        if first == ("attacker", "defender"):
            assert second == first
            pairs["self"] += 1
        else:
            name = first[1].split("/")[0]
            assert first == ("attacker", f"{name}/defender")
            assert second == (f"{name}/attacker", "defender")
            pairs[name] += 1
    assert pairs["past-0"] / 4000 == pytest.approx(0.3, abs=0.03)
    assert pairs["fixed-0"] / 4000 == pytest.approx(0.1, abs=0.02)
    assert [opponents(n) for n in range(50)] == [Opponents(1, opponents.shares)(n) for n in range(50)]
    assert Opponents(1)(7) == ("attacker", "defender")


def test_mixed_in_opponents_share_their_games_and_the_others_keep_theirs() -> None:
    mixed = Opponents(1, (("past-0", 0.3),)).mixed_with(("base", "imitated"), 0.4)
    assert mixed.shares == (("base", 0.2), ("imitated", 0.2), ("past-0", 0.3))
    met = Counter(name.split("/")[0] for number in range(8000) for name in mixed(number) if "/" in name)
    assert {name: count / 8000 for name, count in met.items()} == {
        "base": pytest.approx(0.2, abs=0.03),
        "imitated": pytest.approx(0.2, abs=0.03),
        "past-0": pytest.approx(0.3, abs=0.03),
    }


def test_versions_are_kept_within_the_budget_and_spread_over_the_run() -> None:
    kept = league(max_snapshots=4)
    dropped = [old.version for version in range(1, 33) for old in kept.keep(past(version))]
    versions = [one.version for one in kept.kept]
    assert len(versions) == 4
    assert versions[0] == 1
    assert versions[-1] == 32
    assert sorted([*dropped, *versions]) == list(range(1, 33))
    assert max(b - a for a, b in pairwise(versions)) <= 22
    assert [league(snapshot_every=3).wants(version) for version in (2, 3, 6)] == [False, True, True]


def test_hard_opponents_are_drawn_more_often() -> None:
    hard = league(choose="hard")
    for version in (1, 2):
        hard.keep(past(version))
    for _ in range(40):
        hard.matrix.add("policy@9", "policy@1", Outcome.ATTACKER_WINS)
        hard.matrix.add("policy@2", "policy@9", Outcome.ATTACKER_WINS)
    drawn = Counter(one.version for _ in range(500) for one in hard.draw(1))
    assert hard.hardness(past(1)) < 0.06
    assert hard.hardness(past(2)) > 0.9
    assert drawn[2] > 5 * drawn[1] > 0
    even = league()
    even.kept = hard.kept
    even.matrix = hard.matrix
    drawn = Counter(one.version for _ in range(500) for one in even.draw(1))
    assert abs(drawn[1] - drawn[2]) < 100
    assert {one.version for one in even.draw(2)} == {1, 2}
    assert len(even.draw(3)) == 3
    assert league().draw(2) == []


def test_only_the_learners_turns_of_a_game_are_learned() -> None:
    def between(attacker: str, defender: str, outcome: Outcome) -> object:
        played = game(0, outcome)
        names = {Role.ATTACKER: attacker, Role.DEFENDER: defender}
        return replace(played, turns=tuple(replace(turn, policy=names[turn.role]) for turn in played.turns))

    games = [
        between("policy", "past policy", Outcome.ATTACKER_WINS),
        between("policy", "past policy", Outcome.DEFENDER_WINS),
        between("past policy", "policy", Outcome.DEFENDER_WINS),
        between("policy", "policy", Outcome.ATTACKER_WINS),
    ]
    samples = game_samples(games, ObjectiveConfig(), learning={"policy"})  # type: ignore[arg-type]
    assert [sample.role for sample in samples] == [Role.ATTACKER, Role.DEFENDER, Role.ATTACKER]
    assert [sample.weight for sample in samples] == [pytest.approx(0.75), pytest.approx(1.5), pytest.approx(0.75)]
    both = game_samples(games, ObjectiveConfig(learn_from="both"), learning={"policy"})  # type: ignore[arg-type]
    assert len(both) == 4
    assert all(turn.role is Role.ATTACKER and turn.advantage < 0 for turn in both[1].turns)
    assert players_of(games[0]) == ("policy@0", "policy@0")  # type: ignore[arg-type]


def test_ratings_order_players_seat_by_seat_and_even_games_rate_the_same() -> None:
    matrix = WinMatrix()
    for strong, weak, wins in (("a", "b", 30), ("b", "c", 30), ("a", "c", 36)):
        for attacker, defender in ((strong, weak), (weak, strong)):
            for number in range(40):
                attacks = (attacker == strong) == (number < wins)
                matrix.add(attacker, defender, Outcome.ATTACKER_WINS if attacks else Outcome.DEFENDER_WINS)
    ratings = matrix.ratings()
    for role in Role:
        assert ratings["a", role] > ratings["b", role] > ratings["c", role]
    assert sum(ratings.values()) == pytest.approx(0, abs=1)
    # 30 of 40 are odds of 3 to 1.
    gap = ratings["a", Role.ATTACKER] - ratings["b", Role.DEFENDER]
    assert gap == pytest.approx(400 * math.log10(3), abs=60)
    assert WinMatrix().ratings() == {}


def test_a_league_of_many_versions_rates_kept_and_new_ones_and_saves_no_ratings() -> None:
    league = League(LeagueConfig(past_share=0.3, fixed=[{"model": "/models/other", "share": 0.1}]), 0)
    league.kept = [PastVersion(version, {"policy": "f"}) for version in (0, 700, 1500)]
    for version in range(1600):
        for opponent in ("policy@0", "policy@700", "/models/other@0"):
            league.matrix.add(f"policy@{version}", opponent, Outcome.ATTACKER_WINS)
    rated = {name.split(" as ")[0] for name in league.summary()["ratings"]}
    assert rated == {"policy@0", "policy@700", "/models/other@0", *(f"policy@{n}" for n in range(1500, 1600))}
    assert "ratings" not in league.as_json()
    assert len(league.as_json()["games"]) == 3 * 1600


def test_without_opponents_no_game_is_counted() -> None:
    league = League(LeagueConfig(), 0)
    league.record([game(0, Outcome.ATTACKER_WINS)] * 3)
    assert league.as_json() == {"kept": [], "draws": 0, "games": []}


def test_shares_above_one_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"add up to 1\.2"):
        parse_config({"league": {"past_share": 0.7, "fixed": [{"model": "m", "share": 0.5}]}})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"league": {"fixed": [{"model": "http://127.0.0.1:1/v1", "share": 0.5}]}}, "which of the server's models"),
        (
            {"league": {"fixed": [{"model": "scripted", "share": 0.5}]}, "words": {"source": "words.txt"}},
            "needs a card for every word",
        ),
    ],
)
def test_players_that_cannot_play_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(changes)

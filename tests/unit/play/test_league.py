"""Who plays whom, which versions are kept and drawn, and what becomes of results."""

import json
import math
import shutil
from collections import Counter
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actors.league import League, Opponents, PastVersion, players_of
from cluster.handles import SavedWeights
from cluster.schedules.league import LeaguePlay
from cluster.schedules.seating import Seating
from spag_ray.config.loading import parse_config
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.opponents import LeagueConfig
from spag_ray.errors import ConfigError
from spag_ray.game.rules import Outcome, Role
from spag_ray.game.turn import Turn
from spag_ray.results.ratings import WinMatrix
from spag_ray.training_data.game_samples import game_samples
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


def test_an_opponent_that_always_loses_is_still_drawn_now_and_then() -> None:
    hard = league(choose="hard")
    for _ in range(400):
        hard.matrix.add("policy@9", "policy@1", Outcome.ATTACKER_WINS)
    assert hard.hardness(past(1)) == 0.02


def test_only_the_learners_losses_make_an_opponent_hard() -> None:
    """Not what that version lost as the learner, to older ones and fixed opponents, nor its self-play."""
    hard = league(choose="hard")
    for version in (1, 2):
        hard.keep(past(version))
    for _ in range(20):
        hard.matrix.add("policy@2", "policy@9", Outcome.ATTACKER_WINS)
        hard.matrix.add("policy@9", "policy@1", Outcome.ATTACKER_WINS)
    for _ in range(100):
        hard.matrix.add("policy@2", "scripted@0", Outcome.DEFENDER_WINS)
    assert hard.hardness(past(2)) > 0.9
    assert hard.hardness(past(1)) < 0.1
    two = PastVersion(3, {"attacker": "a", "defender": "d"})
    before = hard.hardness(two)
    for _ in range(100):
        hard.matrix.add("attacker@3", "defender@3", Outcome.ATTACKER_WINS)
    assert hard.hardness(two) == before == 0.5
    hard.matrix.add("attacker@4", "defender@3", Outcome.DEFENDER_WINS)
    assert hard.hardness(two) > 0.5


def test_each_round_has_its_shares_and_its_own_opponents() -> None:
    opponents = Opponents(3, (("past-0", 0.3), ("fixed-0", 0.1), ("fixed-1", 0.1)))
    rounds = [[replace(opponents, stage=f"spag-{number}")(n) for n in range(64)] for number in range(1, 41)]
    assert rounds[0] != rounds[1]
    for name, share in opponents.shares:
        met = [sum(name in {seat.partition("/")[0] for seat in pair} for pair in each) / 64 for each in rounds]
        assert sum(met) / len(met) == pytest.approx(share, abs=0.02)
        assert max(met) - min(met) <= 0.1, "no round goes without"


def meeting(among: League, first: int, second: int, margin: float, games: int) -> None:
    """Pairs of games, one in each seat, in which the first version gains `margin` more than the second."""
    for _ in range(games):
        among.matrix.add(f"policy@{first}", f"policy@{second}", Outcome.TIED, margin)
        among.matrix.add(f"policy@{second}", f"policy@{first}", Outcome.TIED, -margin)


def test_even_opponents_are_those_of_whom_half_the_games_are_lost() -> None:
    even = league(choose="even")
    for version, lost in ((1, 2), (2, 20), (3, 38)):
        even.keep(past(version))
        for number in range(40):
            outcome = Outcome.DEFENDER_WINS if number < lost else Outcome.ATTACKER_WINS
            even.matrix.add("policy@9", f"policy@{version}", outcome)
    chance = [even.hardness(one) * (1 - even.hardness(one)) for one in even.kept]
    assert even.mixture() == pytest.approx([each / sum(chance) for each in chance])
    assert even.mixture()[1] > 2 * even.mixture()[0] > 0


def test_a_league_of_nash_plays_the_equilibrium_of_the_versions_that_have_met() -> None:
    """Versions 1, 2 and 3 beat one another in a circle, 4 loses to all, and 5 has not played yet."""
    nash = league(choose="nash", max_snapshots=5)
    for version in range(1, 6):
        nash.keep(past(version))
    assert nash.mixture() == pytest.approx([0.2] * 5), "nobody has met anybody"
    for first, second, margin in ((1, 2, 1.0), (2, 3, 1.0), (3, 1, 2.0)):
        meeting(nash, first, second, margin, games=10_000)
    for version in (1, 2, 3):
        meeting(nash, version, 4, 1.0, games=10_000)
    # Against x, version 1 gains x2 - 2 x3, 2 gains x3 - x1, 3 gains 2 x1 - x2: all are 0 at (1, 2, 1) / 4.
    assert nash.mixture() == pytest.approx([0.02 + 0.9 * share for share in (0.25, 0.5, 0.25, 0, 0)], abs=1e-3)
    assert [one.version for one in nash.keep(past(6))] == [4], "the one that the equilibrium does not play goes"


def test_what_few_games_say_of_two_versions_counts_for_little() -> None:
    nash = league(choose="nash", max_snapshots=3)
    for version in (1, 2, 3):
        nash.keep(past(version))
    meeting(nash, 1, 2, 0.5, games=200)
    meeting(nash, 2, 3, 0.5, games=200)
    meeting(nash, 3, 1, 1.0, games=1)  # 2 games and 4 even ones: a third
    gains = (0.5 * 400 / 404, 1.0 * 2 / 6)  # around the circle: twice the one, once the other
    assert nash.mixture()[1] == pytest.approx(0.1 / 3 + 0.9 * gains[1] / (2 * gains[0] + gains[1]))


def test_with_room_for_all_kept_versions_each_gets_its_share_of_the_games() -> None:
    hard = league(choose="hard", past_share=0.8)
    for version, outcome in ((1, Outcome.DEFENDER_WINS), (2, Outcome.ATTACKER_WINS)):
        hard.keep(past(version))
        for _ in range(96):
            hard.matrix.add("policy@9", f"policy@{version}", outcome)
    assert hard.opponents(2).shares == (("past-0", 0.4), ("past-1", 0.4)), "none is drawn yet"
    assert hard.mixture() == pytest.approx([0.98 / (0.98 + 0.02), 0.02 / (0.98 + 0.02)])
    assert hard.draw(0) == []
    for count in (2, 3, 5):
        drawn = hard.draw(count)
        share = Counter[int]()
        for one, (_, each) in zip(drawn, hard.opponents(count).shares, strict=True):
            share[one.version] += each  # type: ignore[assignment]
        assert share == {1: pytest.approx(0.8 * 0.98), 2: pytest.approx(0.8 * 0.02)}, count
    assert hard.opponents(4).shares == tuple((f"past-{place}", 0.2) for place in range(4)), "none is drawn for so many"
    hard.restore(None, lambda past: True)
    assert hard.draw(5) == []
    assert [share for _, share in hard.opponents(5).shares] == pytest.approx([0.16] * 5)


def test_places_of_an_equilibrium_are_divided_as_it_mixes_and_are_never_more_than_there_are() -> None:
    nash = league(choose="nash")
    for version in range(1, 5):
        nash.keep(past(version))
    meeting(nash, 3, 1, 1.0, games=500)
    meeting(nash, 3, 2, 1.0, games=500)
    meeting(nash, 3, 4, 1.0, games=500)
    drawn = Counter(one.version for _ in range(400) for one in nash.draw(2))
    assert drawn.total() == 800
    assert drawn[3] / 800 == pytest.approx(0.925, abs=0.02)
    assert nash.opponents(2).shares == (("past-0", 0.25), ("past-1", 0.25))
    assert nash.draw(2) == nash.draw(2, again=True)


def test_a_game_counts_for_what_it_pays() -> None:
    """Kuhn poker pays one or two chips; Taboo pays nothing of its own."""
    played = league(choose="nash")
    paid = replace(game(0, Outcome.ATTACKER_WINS).verdict, payoffs=(2.0, -2.0))
    played.record([game(0, Outcome.DEFENDER_WINS), replace(game(1, Outcome.ATTACKER_WINS), verdict=paid)])
    ((attacker, defender),) = {(row["attacker"], row["defender"]) for row in played.as_json()["games"]}
    assert (attacker, defender) == ("p@0", "p@0")
    assert [row["margin"] for row in played.as_json()["games"]] == [1.0]
    other = WinMatrix()
    other.add("a", "b", Outcome.ATTACKER_WINS, 2.0)
    other.add("b", "a", Outcome.TIED)
    assert other.margin("a", "b") == (2.0, 2)
    assert other.margin("b", "a") == (-2.0, 2)
    assert other.margin("a", "c") == (0.0, 0)
    rows = [{key: value for key, value in row.items() if key != "margin"} for row in other.as_json()]
    assert WinMatrix.from_json(rows).margin("a", "b") == (1.0, 2), "of a run before margins: a win is worth 1"


def test_a_league_that_is_restored_draws_and_counts_as_if_it_had_not_been() -> None:
    before = league(choose="hard", max_snapshots=8)
    for version in range(1, 7):
        before.keep(past(version))
        before.matrix.add("policy@9", f"policy@{version}", Outcome.DEFENDER_WINS)
    before.draw(2)
    after = league(choose="hard", max_snapshots=8)
    after.restore(json.loads(json.dumps(before.as_json())), lambda past: True)
    assert after.as_json() == before.as_json()
    assert [after.draw(2) for _ in range(20)] == [before.draw(2) for _ in range(20)]
    after.restore(before.as_json(), lambda past: past.version != 3)
    assert [past.version for past in after.kept] == [1, 2, 4, 5, 6], "the folder of one is gone"


@pytest.mark.parametrize("count", [2, 4, 6])
def test_a_version_that_is_drawn_again_keeps_its_place(count: int) -> None:
    """Else its engine would load another one, after the longest of its games. With 4 places and more all are met."""
    one = league()
    for version in range(1, 5):
        one.keep(PastVersion(version, {"policy": ""}))
    before = [past.version for past in one.draw(count)]
    for _ in range(20):
        after = [past.version for past in one.draw(count)]
        for version in set(before) & set(after):
            assert {n for n, v in enumerate(before) if v == version} & {n for n, v in enumerate(after) if v == version}
        assert count < 4 or after == before
        before = after
    one.keep(PastVersion(5, {"policy": ""}))
    assert count < 6 or sum(v != past.version for v, past in zip(before, one.draw(count), strict=True)) == 1


def test_leagues_of_other_seeds_draw_other_versions() -> None:
    def drawn(seed: int) -> list[int]:
        one = League(LeagueConfig(past_share=0.5), seed, [past(version) for version in range(8)])
        return [each.version for _ in range(10) for each in one.draw(1)]

    assert drawn(0) == drawn(0) != drawn(1)


def test_a_league_is_open_with_past_or_with_fixed_opponents() -> None:
    fixed = [{"model": "/models/other", "share": 0.1}]
    assert league().is_open
    assert league(past_share=0, fixed=fixed).is_open
    assert not league(past_share=0).is_open


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


def test_a_game_counts_for_the_oldest_weights_that_began_one_of_a_seats_turns() -> None:
    """The attacker's weights changed during its second turn, the defender's between its turns."""
    played = game(0, Outcome.ATTACKER_WINS)
    versions = [(4, 4), (7, 7), (3, 6), (8, 8)]
    turns = (
        replace(turn, first_version=first, last_version=last)
        for turn, (first, last) in zip(played.turns, versions, strict=True)
    )
    assert players_of(replace(played, turns=tuple(turns))) == ("p@3", "p@7")


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
    assert league.as_json() == {"kept": [], "draws": 0, "newest": None, "places": [], "games": []}


class Policies:
    """A learning policy of a league: what is saved of it, in which folder."""

    name, model, version, roles = "policy", "/models/base", 0, frozenset(Role)
    learners_are_awake = False

    def save_to(self, folder: Path, adapter_alone: bool) -> str:
        assert self.learners_are_awake, "asleep, their weights are elsewhere"
        folder.mkdir(parents=True)
        self.saved_alone = adapter_alone
        return str(folder)


class Given:
    """A publisher and a fleet that write down what they are asked for."""

    def __init__(self) -> None:
        self.started: list[tuple[str, int, int]] = []
        self.given: list[tuple[str, dict[str | None, int]]] = []
        self.fleet = self
        self.policies: list[Policies] = []

    def wake_learners(self) -> None:
        for policy in self.policies:
            policy.learners_are_awake = True

    def wake_engines(self) -> None:
        for policy in self.policies:
            policy.learners_are_awake = False

    def start(self, model: str, pool: str, policy: str, count: int, num_adapters: int = 0) -> None:
        assert (model, policy) == ("/models/base", "past policy")
        self.started.append((pool, count, num_adapters))

    def give(self, pool: str, saved: SavedWeights) -> None:
        assert all(Path(folder).name == "policy" and Path(folder).is_dir() for folder, _ in saved.values())
        self.given.append((pool, {adapter: version for adapter, (_, version) in saved.items()}))


ADAPTERS = {"lora": {"export": "adapter"}}


def league_play(tmp_path: Path, learner: dict[str, Any], **league: Any) -> tuple[LeaguePlay, Policies, Given]:
    config = parse_config({"learner": learner, "league": {"past_share": 0.5} | league})
    policy: Any = Policies()
    engines: Any = Given()
    engines.policies = [policy]
    lease: Any = SimpleNamespace(folder=tmp_path, check=lambda now: None)
    seating = Seating(config, [policy], "/models/base", {})
    recorder: Any = SimpleNamespace(record=lambda line: None)
    play = LeaguePlay(config, lease, [policy], engines, seating, recorder)
    play.start()
    return play, policy, engines


def test_opponents_that_are_adapters_share_the_past_engines(tmp_path: Path) -> None:
    play, policy, engines = league_play(tmp_path, ADAPTERS, num_opponents=3, num_engines=2, snapshot_every=2)
    assert engines.started == [("policy-past", 2, 3)]
    assert {(seat.pool, seat.adapter) for seat in play.seats.values()} == {
        ("policy-past", f"past-{number}") for number in range(3)
    }
    assert [share for _, share in play.opponents().shares] == [pytest.approx(0.5 / 3)] * 3
    for policy.version in range(1, 7):
        play.new_version(policy.version)
    assert [past.version for past in play.league.kept] == [1, 2, 4, 6], "the first, so that all opponents can play"
    assert policy.saved_alone
    assert engines.given[0] == ("policy-past", {"past-0": 1, "past-1": 1, "past-2": 1})
    for pool, drawn in engines.given[3:]:
        assert pool == "policy-past"
        assert len(set(drawn.values())) == 3


def test_opponents_that_are_whole_models_have_an_engine_each(tmp_path: Path) -> None:
    play, policy, engines = league_play(tmp_path, {}, num_engines=2, snapshot_every=2)
    assert engines.started == [("policy-past-0", 1, 0), ("policy-past-1", 1, 0)]
    assert {(seat.pool, seat.adapter) for seat in play.seats.values()} == {
        (f"policy-past-{number}", None) for number in range(2)
    }
    for policy.version in (1, 2):
        play.new_version(policy.version)
    assert engines.given == [("policy-past-0", {None: 2}), ("policy-past-1", {None: 2})]
    assert not policy.saved_alone


def test_a_resumed_league_counts_the_versions_of_training_and_not_the_numbers_of_publishing() -> None:
    counted = league()
    assert [counted.reached(version, version) for version in (1, 2)] == [True, True]
    resumed = league()
    resumed.numbers = counted.numbers
    resumed.restore(counted.as_json(), lambda past: True)
    assert not resumed.reached(2, 5), "numbers 3 and 4 went to versions that are lost; 5 has the weights of 2 again"
    assert resumed.reached(3, 6)
    assert resumed.newest == 3
    assert [resumed.version_of_number(number) for number in (0, 1, 2, 5, 6)] == [0, 1, 2, 2, 3]
    assert [resumed.number_of(version) for version in (0, 1, 2, 3)] == [0, 1, 5, 6], "the last ones"
    played = replace(
        game(0, Outcome.ATTACKER_WINS),
        turns=tuple(
            Turn(role, "x", (1,), (2,), (-0.5,), policy, version, version)
            for role, policy, version in ((Role.ATTACKER, "policy", 6), (Role.DEFENDER, "past policy", 5))
        ),
    )
    resumed.record([played])
    assert resumed.as_json()["games"] == [
        {"attacker": "policy@3", "defender": "policy@2", "margin": 1.0, "attacker wins": 1}
    ]


def test_a_version_that_a_resumed_league_has_already_changes_nothing(tmp_path: Path) -> None:
    play, policy, engines = league_play(tmp_path, {}, num_engines=2, snapshot_every=1)
    for policy.version in (1, 2, 3):
        play.new_version(policy.version)
    saved, given = play.league.as_json(), [(pool, min(drawn.values())) for pool, drawn in engines.given[-2:]]
    play.restore(saved)
    policy.version = 7
    play.new_version(3, may_keep=False)
    assert play.league.as_json() == saved
    play.new_version(3)
    assert play.league.as_json() == saved
    again = [(pool, play.league.version_of_number(min(drawn.values()))) for pool, drawn in engines.given[-2:]]
    assert again == given, "the same opponents"
    play.new_version(4, may_keep=False)
    assert [past.version for past in play.league.kept] == [1, 2, 3], "weights from the middle of a stage"


def test_opponents_that_are_adapters_play_also_where_all_kept_versions_were_removed(tmp_path: Path) -> None:
    play, policy, engines = league_play(tmp_path, ADAPTERS, num_opponents=2, snapshot_every=2)
    policy.version = 3
    play.new_version(3)
    saved = play.league.as_json()
    shutil.rmtree(tmp_path / "league")
    play.restore(saved)
    policy.version = 4
    play.new_version(3)
    assert engines.given[-1] == ("policy-past", {"past-0": 4, "past-1": 4}), "else every game against them would fail"


def test_versions_that_are_dropped_stay_on_disk_as_long_as_the_newest_checkpoint_has_them(tmp_path: Path) -> None:
    play, policy, _ = league_play(tmp_path, {}, max_snapshots=2, snapshot_every=1)

    def there() -> list[str]:
        return sorted(path.name for path in (tmp_path / "league").iterdir())

    for policy.version in (1, 2, 3):
        play.new_version(policy.version)
    assert there() == ["v1", "v3"], "without checkpoints they go at once"
    play.is_saved(play.league.as_json())
    for policy.version in (4, 5):
        play.new_version(policy.version)
    assert there() == ["v1", "v3", "v5"]
    saved = play.league.as_json()
    play.is_saved(saved)
    assert there() == ["v1", "v5"]
    (tmp_path / "league" / "v6" / "policy").mkdir(parents=True)  # of an attempt that ended
    moved = {**saved, "kept": [past | {"folders": {"policy": "/elsewhere"}} for past in saved["kept"]]}
    play.restore(moved)
    assert play.league.as_json() == saved, "the run folder was moved"
    policy.version = 8
    play.new_version(5)
    assert there() == ["numbers.json", "v1", "v5"]
    play.new_version(6)
    assert there() == ["numbers.json", "v1", "v5", "v6"]
    play.end()
    assert there() == ["numbers.json", "v1", "v6"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"league": {"num_opponents": 3}}, r"num_opponents is 3, but league\.num_engines is 1, and each"),
        ({"league": {"num_opponents": 3}, "learner": {"lora": {}}}, r"or learner\.lora\.export: adapter"),
        ({"league": {"num_opponents": 9}, "learner": ADAPTERS}, "max_snapshots keeps 8 versions"),
        ({"engine": {"kind": "transformers"}, "learner": ADAPTERS}, r"set engine\.kind: vllm"),
        ({"league": {"past_share": 0.7, "fixed": [{"model": "m", "share": 0.5}]}}, r"add up to 1\.2"),
        ({"league": {"fixed": [{"model": "http://127.0.0.1:1/v1", "share": 0.5}]}}, "which of the server's models"),
        (
            {"league": {"fixed": [{"model": "scripted", "share": 0.5}]}, "words": {"source": "words.txt"}},
            "needs a card for every word",
        ),
    ],
)
def test_opponents_that_cannot_play_are_refused_in_one_line(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message) as refused:
        parse_config(changes)
    assert "\n" not in str(refused.value)


def test_opponents_are_as_many_as_engines_unless_they_are_adapters() -> None:
    whole = parse_config({"league": {"past_share": 0.3, "num_engines": 2, "num_opponents": 2}})
    assert whole.league.num_past == 2
    assert parse_config({"league": {"past_share": 0.3}, "learner": ADAPTERS}).league.num_past == 1
    assert parse_config({"league": {"num_opponents": 8}, "learner": ADAPTERS}).league.num_past == 0, "no share of games"

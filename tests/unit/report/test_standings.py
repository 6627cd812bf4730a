"""Scores with intervals, ratings, and who is better, from matches."""

import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import product
from pathlib import Path

import pytest

from spag_ray.errors import InputError
from spag_ray.game.rules import Outcome, Role
from spag_ray.results import standings
from spag_ray.results.matches import Game, Match, others, read_matches, write_matches
from spag_ray.results.ratings import WinMatrix, equilibrium
from spag_ray.results.standings import (
    Estimate,
    better,
    elo,
    outcome_cells,
    players,
    ratings,
    score,
    share,
    turns_to_win,
)


@pytest.fixture
def few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Enough for what is repeated for many seeds."""
    monkeypatch.setattr(standings, "NUM_DRAWS", 1_000)


WORDS = [f"word{number}" for number in range(40)]


def match(attacker: str, defender: str, attacker_wins: float, seed: int = 0, words: list[str] = WORDS) -> Match:
    """Two games a word, of which the attacker wins a share and the defender the rest."""
    draw = random.Random(f"{seed} {attacker} {defender}")
    outcomes = (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS)
    games = (Game(word, outcomes[draw.random() >= attacker_wins], 4) for word in words for _ in range(2))
    return Match(attacker, defender, tuple(games))


def test_matches_are_read_as_they_were_written(tmp_path: Path) -> None:
    matches = [match("new", "old", 0.7), Match("old", "new", (Game('quo"te', Outcome.TIED, 8),)), Match("a", "b", ())]
    write_matches(tmp_path / "matches.json", matches)
    assert read_matches(tmp_path / "matches.json") == matches


def test_what_others_wrote_into_the_file_meanwhile_is_kept(tmp_path: Path) -> None:
    theirs, ours = match("spag-1", "spag-1", 0.5), match("guest", "spag-1", 0.5)
    path = tmp_path / "matches.json"
    write_matches(path, [theirs, match("guest", "spag-1", 0.9)])
    assert others(read_matches(path), [ours]) == [theirs]


@pytest.mark.parametrize("text", ["", "{}", "[1]", '[{"attacker": "a", "defender": "b", "games": [["w", "draw", 1]]}]'])
def test_a_file_that_holds_no_matches_is_refused_by_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "matches.json").write_text(text)
    with pytest.raises(InputError, match=r"matches\.json"):
        read_matches(tmp_path / "matches.json")


def test_a_score_is_the_mean_of_both_seats_whatever_the_numbers_of_games() -> None:
    wins = Match("new", "old", tuple(Game(word, Outcome.ATTACKER_WINS, 2) for word in WORDS))
    losses = Match("old", "new", tuple(Game(word, Outcome.ATTACKER_WINS, 2) for word in WORDS * 3))
    assert score([[wins, losses]], "new", "old").value == 0.5
    assert score([[wins, losses]], "new", "old", roles=[Role.DEFENDER]).value == 0.0


def test_a_breach_counts_for_the_other_and_can_be_left_out() -> None:
    games = (Game("a", Outcome.DEFENDER_BREACH, 2), Game("b", Outcome.TIED, 8), Game("c", Outcome.DEFENDER_WINS, 2))
    matches = [Match("new", "old", games)]
    assert score([matches], "new", "old", roles=[Role.ATTACKER]).value == pytest.approx(1.5 / 3)
    assert score([matches], "new", "old", breach_free=True, roles=[Role.ATTACKER]).value == pytest.approx(0.5 / 2)


def test_shares_of_a_match_are_as_sure_as_its_words_are_many() -> None:
    """Games on one word end alike: 200 games on 20 words are not 200 independent games."""
    ends = [Outcome.ATTACKER_WINS, Outcome.TIED]
    few = Match("a", "b", tuple(Game(f"w{number % 20}", ends[number % 20 % 2], 4) for number in range(200)))
    many = Match("a", "b", tuple(Game(f"w{number}", ends[number % 2], 4) for number in range(200)))
    assert outcome_cells(few) == ["50 [28, 72]", "0 [0, 18]", "0 [0, 18]", "50 [28, 72]"]
    assert outcome_cells(many)[0] == "50 [43, 57]"
    assert outcome_cells(Match("a", "b", ())) == ["-"] * 4
    found = share(few, lambda outcome: outcome.score(Role.ATTACKER))
    both = [few, Match("b", "a", few.games)]
    assert (found.value, found.low) == (0.75, pytest.approx(score([both], "a", "b", roles=[Role.ATTACKER]).low))


def test_who_did_not_meet_in_both_seats_has_no_score_over_both() -> None:
    with pytest.raises(InputError, match="every seat"):
        score([[match("new", "old", 0.7)]], "new", "old")


@pytest.mark.usefixtures("few_draws")
def test_intervals_hold_the_truth_about_as_often_as_they_say() -> None:
    held = 0
    for seed in range(60):
        run = [match("new", "old", 0.8, seed), match("old", "new", 0.4, seed)]
        found = score([run], "new", "old")
        held += found.low <= 0.7 <= found.high
    assert held >= 52  # 57 of 60 expected; 52 or fewer would be one in two hundred


def test_seeds_that_differ_widen_the_interval() -> None:
    alike = [[match("new", "old", 0.7, seed), match("old", "new", 0.3, seed)] for seed in range(3)]
    differ = [[match("new", "old", p, seed), match("old", "new", 1 - p, seed)] for seed, p in enumerate((0.4, 0.7, 1))]
    narrow, wide = (score(runs, "new", "old") for runs in (alike, differ))
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)
    assert wide.value == pytest.approx(narrow.value, abs=0.06)
    assert wide.has_interval
    assert str(Estimate(0.5, 0.0, 1.0)) == "0.50 [0.00, 1.00]", "few seeds that differ much, not few words"
    same = score(alike[:1] * 2, "new", "old")
    assert same.high - same.low > 0.05, "two seeds that came to the same are not certain"


@pytest.mark.parametrize("num_seeds", [2, 3, 4])
def test_an_interval_over_seeds_holds_the_truth_where_seeds_differ(num_seeds: int) -> None:
    draw, held = random.Random(num_seeds), 0
    for number in range(100):
        truths = [min(1.0, max(0.0, draw.gauss(0.5, 0.1))) for _ in range(num_seeds)]
        runs = [
            [match("new", "old", p, 100 * number + seed), match("old", "new", 1 - p, 100 * number + seed)]
            for seed, p in enumerate(truths)
        ]
        found = score(runs, "new", "old")
        held += found.low <= 0.5 <= found.high
    assert held >= 89, "a bootstrap over seeds and words held it in 73 to 87 of 100"


def test_an_interval_over_seeds_holds_the_truth_where_all_play_the_same_words() -> None:
    """Of which half are nearly always won: another twenty words would have other shares of these."""
    draw, held = random.Random(1), 0
    for number in range(60):
        easy: list[str] = []
        hard: list[str] = []
        for word in WORDS[:20]:
            draw.choice((easy, hard)).append(word)
        runs = [
            [
                match(*seats, won, 10 * number + seed, words)
                for words, chance in ((easy, 0.95), (hard, 0.05))
                for seats, won in ((("new", "old"), chance), (("old", "new"), 1 - chance))
            ]
            for seed in range(4)
        ]
        found = score(runs, "new", "old")
        held += found.low <= 0.5 <= found.high
    assert held >= 53, "57 expected; 42 where each seed's words count as other words"


def test_ratings_order_players_and_know_how_sure_they_are() -> None:
    few = [match(a, d, 0.5 + 0.2 * (rank(a) - rank(d)), words=WORDS[:10]) for a in "abc" for d in "abc"]
    many = [match(a, d, 0.5 + 0.2 * (rank(a) - rank(d))) for a in "abc" for d in "abc"]
    rated, less_sure = ratings(many), ratings(few)
    assert rated["a", Role.ATTACKER].value < rated["b", Role.ATTACKER].value < rated["c", Role.ATTACKER].value
    assert rated["a", Role.DEFENDER].value < rated["c", Role.DEFENDER].value
    for seat, found in rated.items():
        assert found.low < found.value < found.high
        wider = less_sure[seat]
        assert wider.high - wider.low > found.high - found.low
    assert ratings([]) == {}


def rank(name: str) -> float:
    return "abc".index(name)


def tournament(
    draw: random.Random, num_words: int, attack: Sequence[float], defence: Sequence[float], spread: float = 1.0
) -> list[Match]:
    """Every player in both seats against every player: two games a word, at odds of exp(attack - defence + what the
    word adds)."""
    ease = [draw.gauss(0, spread) for _ in range(num_words) for _ in range(2)]
    matches = []
    for one, other in product(range(len(attack)), repeat=2):
        wins = [draw.random() * (1 + math.exp(defence[other] - attack[one] - each)) < 1 for each in ease]
        outcomes = [Outcome.ATTACKER_WINS if won else Outcome.DEFENDER_WINS for won in wins]
        games = (Game(f"word{number // 2}", each, 4) for number, each in enumerate(outcomes))
        matches.append(Match("abc"[one], "abc"[other], tuple(games)))
    return matches


def coverage(
    num_words: int, attack: Sequence[float], defence: Sequence[float], num: int = 1000, spread: float = 1.0
) -> dict[tuple[str, Role], float]:
    """Each seat's share of `num` tournaments whose interval holds the true rating; {} without ratings."""
    true = {
        ("abc"[place], role): 400 / math.log(10) * (strengths[place] - sum(strengths) / len(strengths))
        for role, strengths in ((Role.ATTACKER, attack), (Role.DEFENDER, defence))
        for place in range(len(strengths))
    }
    draw, held, rated = random.Random(num_words), Counter[tuple[str, Role]](), Counter[tuple[str, Role]]()
    for _ in range(num):
        for seat, found in ratings(tournament(draw, num_words, attack, defence, spread)).items():
            rated[seat] += 1
            held[seat] += found.low <= true[seat] <= found.high
    return {seat: held[seat] / rated[seat] for seat in rated}


@pytest.mark.parametrize(("num_words", "favour"), [(2, 0.0), (5, 0.0), (5, 1.0), (20, 0.0), (20, 1.0), (80, 0.0)])
def test_intervals_of_identical_players_hold_zero_in_93_to_97_of_100_matches(num_words: int, favour: float) -> None:
    """Or there is no rating, as of two words. `favour`: how much the game favours attackers, in logits."""
    found = coverage(num_words, (favour, favour), (0.0, 0.0))
    assert (found == {}) == (num_words == 2)
    assert all(0.93 <= share <= 0.97 for share in found.values()), found


@pytest.mark.parametrize("num_words", [5, 20])
@pytest.mark.parametrize("attack", [(0.0, 0.0, 0.0), (0.8, 0.0, -0.8)], ids=["identical", "different"])
def test_intervals_of_three_players_hold_their_ratings(num_words: int, attack: tuple[float, ...]) -> None:
    found = coverage(num_words, attack, [each / 2 for each in attack], num=500, spread=0.0)
    assert len(found) == 6
    assert all(share >= 0.925 for share in found.values()), found  # 0.95 less two and a half standard errors


def test_ratings_of_many_stages_are_not_pulled_together() -> None:
    """As in a long run: every stage plays itself and the base model. All have the same pull, not each one more."""
    names, reps, draw = ["base", *(f"spag-{number}" for number in range(1, 21))], 12, random.Random(1)
    rise, held, newest = 40 * math.log(10) / 400, 0, []
    for _ in range(reps):
        matches = [
            match(one, other, 1 / (1 + math.exp(rise * (names.index(other) - names.index(one)))), draw.randrange(10**9))
            for one, other in product(names, repeat=2)
            if one == other or "base" in (one, other)
        ]
        last = ratings(matches)[names[-1], Role.ATTACKER]
        held += last.low <= 40 * 10 <= last.high  # 40 Elo points a stage, against their mean
        newest.append(sum((elo(matches, names[-1]) or ("", {}))[1].values()) / 2)
    assert held >= 9, "11 of 12 expected; 0 to 6 with a pull that grows with the number of players, or with a rating"
    assert sum(newest) / reps == pytest.approx(800, abs=60), "480 and 650 with such pulls"


def test_results_that_contradict_each_other_have_ratings_too() -> None:
    """The fit takes more than the 100 steps that choix has by default."""
    draw, rows = random.Random(19), []
    for one in range(8):
        for other in draw.sample(range(8), 3):
            wins = draw.choice([0, 400, 199])
            ends = {str(Outcome.ATTACKER_WINS): wins, str(Outcome.DEFENDER_WINS): 400 - wins}
            rows.append({"attacker": f"{one}", "defender": f"{other}", **ends})
    assert all(map(math.isfinite, WinMatrix.from_json(rows).ratings().values()))


@pytest.mark.parametrize("num_words", [2, 5, 20])
def test_the_score_of_equal_players_is_even_within_its_interval(num_words: int) -> None:
    draw, num = random.Random(num_words), 500
    played = (tournament(draw, num_words, (0.5, 0.5), (0.0, 0.0)) for _ in range(num))
    found = [score([matches], "a", "b") for matches in played]
    assert sum(each.low <= 0.5 <= each.high for each in found) / num >= 0.925
    if num_words == 2:
        assert {(each.low, each.high) for each in found} == {(0, 1)}


def test_a_score_that_is_the_same_on_every_word_is_not_certain() -> None:
    both = [match("new", "old", 1.0, words=WORDS[:10]), match("old", "new", 0.0, words=WORDS[:10])]
    found = score([both], "new", "old")
    assert found.value == found.high == 1.0
    assert 0.6 < found.low < 0.95, "40 wins in a row, on 10 words"


def test_a_rating_that_is_the_same_on_every_word_is_not_certain() -> None:
    games = tuple(Game(word, end, 4) for word in WORDS for end in (Outcome.ATTACKER_WINS, Outcome.DEFENDER_WINS))
    for found in ratings([Match(one, other, games) for one, other in product("ab", repeat=2)]).values():
        assert found.value == pytest.approx(0, abs=0.1)
        assert found.high - found.low > 50, "Elo points: 160 games a seat"


def test_what_has_no_interval_that_holds_has_no_rating() -> None:
    """Few words; the only player of its seat; games that all ended alike; many games on few of many words."""
    names = [(one, other) for one in "ab" for other in "ab"]
    few = [match(*seats, 0.5, words=WORDS[:4]) for seats in names]
    assert ratings(few) == {}
    assert ratings([match("a", "b", 0.5)]) == {}
    unbeaten = [match(one, other, 1.0 if one == "a" else 0.5) for one, other in names]
    assert {name for name, _ in ratings(unbeaten)} == {"a", "b"}
    assert {role for _, role in ratings(unbeaten)} == {Role.DEFENDER}, "of the attackers one has never lost"
    ties = [Match(*seats, tuple(Game(word, Outcome.TIED, 8) for word in WORDS)) for seats in names]
    assert ratings(ties) == {}
    uneven = [match(*seats, 0.5, words=WORDS[:2] * 50 + WORDS) for seats in names]
    assert ratings(uneven) == {}, "worth fewer than five words"


def test_ratings_are_in_each_seat_against_the_players_of_that_seat() -> None:
    every = [match(one, other, 0.9 if one == "a" else 0.7) for one in "abc" for other in "abc"]
    found = ratings(every)
    for role in Role:
        assert sum(each.value for (_, own), each in found.items() if own is role) == pytest.approx(0, abs=1e-6)
    assert found["a", Role.ATTACKER].low > 0
    assert ratings([each for each in every if each.attacker != each.defender]).keys() == found.keys()


@pytest.mark.usefixtures("few_draws")
def test_better_is_found_where_it_is_and_not_where_it_is_not() -> None:
    clear = [match("new", "old", 0.8), match("old", "new", 0.4)]
    test = better(clear, "new", "old")
    assert test.p_value < 0.01
    assert test.num_words == 40
    assert better(clear, "old", "new").p_value > 0.9
    p_values = []
    for seed in range(40):
        even = [match("new", "old", 0.7, seed), match("old", "new", 0.7, seed)]
        p_values.append(better(even, "new", "old", seed=seed).p_value)
    assert sum(p < 0.05 for p in p_values) <= 6
    assert sum(p < 0.5 for p in p_values) in range(10, 31)


def test_two_who_never_met_are_compared_by_whom_both_met() -> None:
    matches = [match("new", "third", 0.9), match("old", "third", 0.3)]
    assert better(matches, "new", "old").p_value < 0.01
    with pytest.raises(InputError, match="no common opponent"):
        better([match("new", "third", 0.9), match("old", "fourth", 0.3)], "new", "old")


def test_turns_to_win_are_those_of_games_that_the_seat_won() -> None:
    games = (Game("a", Outcome.ATTACKER_WINS, 4), Game("b", Outcome.ATTACKER_WINS, 8), Game("c", Outcome.TIED, 8))
    assert turns_to_win([Match("x", "y", games)], Role.ATTACKER) == 6
    assert turns_to_win([Match("x", "y", games)], Role.DEFENDER) is None
    assert players([Match("x", "y", games), Match("z", "x", ())]) == ["x", "y", "z"]


def test_elo_is_how_much_better_a_stage_is_than_the_first_that_games_connect_it_with() -> None:
    stages = ["imitated", "spag-1", "spag-2"]

    def exactly(attacker: str, defender: str, won: float) -> Match:
        wins = round(won * len(WORDS))
        outcomes = [Outcome.ATTACKER_WINS] * wins + [Outcome.DEFENDER_WINS] * (len(WORDS) - wins)
        return Match(attacker, defender, tuple(Game(word, each, 4) for word, each in zip(WORDS, outcomes, strict=True)))

    matches = [exactly(stage, stage, 0.5) for stage in stages]
    for newer, won in (("spag-1", 0.6), ("spag-2", 0.8)):
        matches += [exactly(newer, "imitated", won), exactly("imitated", newer, 1 - won)]
    found = {stage: elo(matches, stage) for stage in stages[1:]}
    values = {}
    for stage, each in found.items():
        assert each is not None
        against, seats = each
        assert against == "imitated"
        assert seats.keys() == set(Role)
        values[stage] = sum(seats.values()) / 2
    assert values["spag-1"] == pytest.approx(400 * math.log10(0.6 / 0.4), abs=5)
    assert values["spag-2"] == pytest.approx(400 * math.log10(0.8 / 0.2), abs=15), "odds of 4 to 1, pulled a little"


def test_a_stage_that_met_nobody_else_in_both_seats_has_no_elo() -> None:
    assert elo([], "spag-1") is None
    assert elo([match("spag-1", "spag-1", 0.5), match("base", "base", 0.5)], "spag-1") is None
    assert elo([match("spag-1", "base", 0.5)], "spag-1") is None, "neither has the other seat"


def test_no_version_gains_from_the_mixture() -> None:
    chance = random.Random(5)
    for size in (1, 2, 3, 8, 24):
        values = [[0.0] * size for _ in range(size)]
        for row in range(size):
            for column in range(row):
                values[row][column] = chance.uniform(-2, 2)
                values[column][row] = -values[row][column]
        shares = equilibrium(values)
        assert sum(shares) == pytest.approx(1)
        assert min(shares) >= 0
        for gains in values:
            assert sum(value * share for value, share in zip(gains, shares, strict=True)) <= 1e-9
        assert equilibrium(values) == shares


def test_a_version_that_beats_all_others_is_played_alone() -> None:
    assert equilibrium([[0, -1, -1], [1, 0, 0.1], [1, -0.1, 0]]) == pytest.approx([0, 1, 0])


def test_a_game_in_which_both_may_gain_is_refused() -> None:
    with pytest.raises(ValueError, match="has to lose"):
        equilibrium([[0, 1], [1, 0]])

"""Word lists, and the stream that gives words out."""

import json
import random
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from spag_ray.errors import InputError
from spag_ray.game.words import STOP_WORDS, Lease, SharePlan, WordsOfGame, WordStream, read_words, top_words
from tests.support.streams import taboo_words

WORDS = [f"word{number}" for number in range(7)]
steps_of_a_run = st.sampled_from(["lease", "done", "give_back", "resume"])


def test_words_come_back_as_written(tmp_path: Path) -> None:
    (tmp_path / "words.txt").write_text("river\nna\u00efve\nmother-in-law\n", encoding="utf-8")
    assert read_words(tmp_path / "words.txt") == ["river", "na\u00efve", "mother-in-law"]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("\n\n", "is empty"),
        ("cat\n\ndog\n", "line 2: blank"),
        ("cat\nice cream\n", "line 2: 'ice cream' is more than one word"),
        ("cat\ndog\ncat\n", "'cat' is on lines 1 and 3"),
        ("cat\nCat\n", "lines 1 and 2"),
    ],
)
def test_an_unclear_word_list_is_refused_with_its_line(tmp_path: Path, content: str, message: str) -> None:
    (tmp_path / "words.txt").write_text(content)
    with pytest.raises(InputError, match=message):
        read_words(tmp_path / "words.txt")


def test_a_missing_word_list_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"none\.txt: cannot read"):
        read_words(tmp_path / "none.txt")


def test_top_words_are_plain_content_words() -> None:
    words = top_words(2000)
    assert len(words) == len(set(words)) == 2000
    assert all(word.isascii() and word.isalpha() and word.islower() and len(word) >= 3 for word in words)
    assert not STOP_WORDS & set(words)
    assert top_words(100) == words[:100]


def test_top_words_refuses_what_it_cannot_give() -> None:
    for count in (0, 10**7):
        with pytest.raises(InputError, match="were requested"):
            top_words(count)


@given(st.integers(0, 5), st.integers(1, 3), st.integers(1, 4))
def test_every_word_comes_equally_often(seed: int, attacker_seats: int, num_passes: int) -> None:
    stream = taboo_words(WORDS, seed, attacker_seats)
    leases = [stream.lease() for _ in range(len(WORDS) * attacker_seats * num_passes)]
    assert Counter(lease.word for lease in leases) == dict.fromkeys(WORDS, attacker_seats * num_passes)
    assert [lease.index for lease in leases] == list(range(len(leases)))


def test_order_is_a_function_of_the_seed_and_differs_between_passes() -> None:
    def order(seed: int) -> list[str]:
        stream = taboo_words(WORDS, seed)
        return [stream.lease().word for _ in range(14)]

    assert order(1) == order(1) != order(2)
    assert order(1)[:7] != order(1)[7:]


@given(st.integers(0, 3), st.lists(steps_of_a_run, max_size=60), st.randoms())
def test_no_word_is_ever_lost(seed: int, steps: list[str], chance: random.Random) -> None:
    stream = taboo_words(WORDS, seed)
    out: list[Lease] = []
    played: list[Lease] = []
    for step in steps:
        if step == "resume":
            stream, out = WordStream.from_state(json.loads(json.dumps(stream.state()))), []
        elif step == "lease":
            out.append(stream.lease())
        elif out:
            lease = out.pop(chance.randrange(len(out)))
            getattr(stream, step)(lease)
            if step == "done":
                played.append(lease)
    for lease in out:
        stream.give_back(lease)
    num_games = 70  # more than the steps can have taken
    while len(played) < num_games:
        played.append(stream.lease())
        stream.done(played[-1])
    undisturbed = taboo_words(WORDS, seed)
    assert sorted(played, key=lambda lease: lease.index) == [undisturbed.lease() for _ in range(num_games)]


def test_a_returned_word_is_given_out_first() -> None:
    stream = taboo_words(WORDS, seed=0)
    first, _ = stream.lease(), stream.lease()
    stream.give_back(first)
    assert stream.lease() == first


def test_a_lease_ends_only_once() -> None:
    stream = taboo_words(WORDS, seed=0)
    lease = stream.lease()
    stream.done(lease)
    for end in (stream.done, stream.give_back):
        with pytest.raises(InputError, match="is not out"):
            end(lease)
    with pytest.raises(InputError, match="is not out"):
        stream.done(Lease("river", 99, "taboo"))


def test_an_empty_or_doubled_word_list_makes_no_stream() -> None:
    with pytest.raises(InputError, match="no words"):
        WordStream([], 0)
    with pytest.raises(InputError, match="twice"):
        WordStream([WordsOfGame("taboo", 1.0, ("cat", "cat"))], 0)


OF_GAMES = [WordsOfGame("taboo", 0.75, ("river", "piano", "tiger")), WordsOfGame("kuhn", 0.25, ("KJ", "QK"))]


def test_each_of_several_games_gets_its_share_in_the_order_that_it_would_have_alone() -> None:
    stream = WordStream(OF_GAMES, seed=3)
    leases = [stream.lease() for _ in range(40)]
    for game, share, words in OF_GAMES:
        alone, own = (taboo_words(words, seed=3), [lease.word for lease in leases if lease.game == game])
        assert len(own) == 40 * share
        assert own == [alone.lease().word for _ in own]


def test_a_stream_of_several_games_resumes_from_its_state() -> None:
    stream = WordStream(OF_GAMES, seed=0, attacker_seats=2)
    leases = [stream.lease() for _ in range(9)]
    assert [lease.scenario for lease in leases[:8:2]] == [lease.scenario for lease in leases[1:8:2]], "both seats"
    for lease in leases[:7]:
        stream.done(lease)
    resumed = WordStream.from_state(json.loads(json.dumps(stream.state())))
    assert [resumed.lease() for _ in range(2)] == leases[7:], "what was under way comes first"
    assert resumed.lease() == stream.lease()
    stream.go_back_to(None)
    assert stream.lease() == leases[0]


def test_the_games_of_a_group_come_in_a_row_and_a_run_resumes_in_the_middle_of_one() -> None:
    stream, alone = WordStream(OF_GAMES, seed=3, games_per_word=3), WordStream(OF_GAMES, seed=3)
    leases = [stream.lease() for _ in range(24)]
    groups = [alone.lease().scenario for _ in range(8)]
    assert [lease.scenario for lease in leases] == [scenario for scenario in groups for _ in range(3)]
    assert Counter(lease.game for lease in leases) == {"taboo": 18, "kuhn": 6}, "shares are those of games"
    for number in (0, 1, 2, 3, 5):  # of the second group, a game is under way
        stream.done(leases[number])
    state = json.loads(json.dumps(stream.state()))
    assert WordStream.from_state(state).lease() == leases[4]
    early = WordStream(OF_GAMES, seed=3, games_per_word=3)
    early.played(4)
    assert [early.lease() for _ in range(5)] == [*leases[:4], leases[5]]
    former = {key: value for key, value in state.items() if key != "games_per_word"}
    assert WordStream.from_state({**former, "next_index": 4, "unfinished": []}).lease().scenario == groups[4]


def test_a_group_against_other_players_has_each_seat_equally_often() -> None:
    pairs = taboo_words(WORDS, 3, attacker_seats=2, games_per_word=4)
    assert [pairs.lease().word for _ in range(8)] == [word for word in order_of(2) for _ in range(4)]
    usual = taboo_words(WORDS, 3, attacker_seats=2)
    assert [usual.lease().word for _ in range(4)] == [word for word in order_of(2) for _ in range(2)]
    with pytest.raises(InputError, match="multiple of 2"):
        taboo_words(WORDS, 0, attacker_seats=2, games_per_word=3)


def test_with_progress_a_word_whose_games_vary_comes_more_often() -> None:
    """Weights of 0.1 plus the spread: 1.1 of the river, 0.5 of the cat and 0.1 of the lamp."""
    stream = taboo_words(["river", "cat", "lamp"], 3, games_per_word=2, order="progress")
    assert sorted(lease.word for lease in (stream.lease() for _ in range(6))) == sorted(["river", "cat", "lamp"] * 2)
    stream.observe("taboo", {"river": 1.0, "cat": 0.4, "lamp": 0.0})
    counts = Counter(stream.lease().word for _ in range(2 * 3 * 1000))
    assert {word: round(count / 6000, 2) for word, count in counts.items()} == pytest.approx(
        {"river": 1.1 / 1.7, "cat": 0.5 / 1.7, "lamp": 0.1 / 1.7}, abs=0.02
    )
    usual = taboo_words(["river", "cat", "lamp"], 3, games_per_word=2)
    usual.observe("taboo", {"river": 1.0, "cat": 0.4, "lamp": 0.0})
    assert Counter(usual.lease().word for _ in range(600)) == {"river": 200, "cat": 200, "lamp": 200}


def test_a_pass_by_progress_stays_as_it_was_drawn_and_resumes_from_the_state() -> None:
    def begun() -> WordStream:
        stream = taboo_words(WORDS, 3, games_per_word=2, order="progress")
        for _ in range(14):
            stream.done(stream.lease())
        stream.observe("taboo", {word: float(word == "word0") for word in WORDS})
        for _ in range(5):  # of the second pass, in the middle of a group
            stream.done(stream.lease())
        stream.observe("taboo", {word: float(word == "word1") for word in WORDS})
        return stream

    stream, other = begun(), begun()
    state = json.loads(json.dumps(stream.state()))
    other.observe("taboo", {word: float(word == "word2") for word in WORDS})
    rest = [stream.lease() for _ in range(9)]
    assert [other.lease() for _ in range(9)] == rest, "the pass was drawn before"
    resumed = WordStream.from_state(state)
    assert [resumed.lease() for _ in range(9)] == rest
    following = [stream.lease().word for _ in range(14)]
    assert [resumed.lease().word for _ in range(14)] == following != [other.lease().word for _ in range(14)]
    stream.go_back_to(None)
    assert [stream.lease().word for _ in range(14)] == [word for word in order_of(7) for _ in range(2)]
    stream.go_back_to(state)
    assert [stream.lease() for _ in range(9)] == rest


def order_of(count: int) -> list[str]:
    stream = taboo_words(WORDS, 3)
    return [stream.lease().word for _ in range(count)]


SHARES = st.lists(st.integers(1, 20), min_size=2, max_size=5).map(lambda parts: [each / sum(parts) for each in parts])


@given(SHARES, st.integers(1, 200))
def test_of_any_first_places_each_game_has_its_share(shares: list[float], count: int) -> None:
    plan = SharePlan(shares)
    games = [plan.at(place)[0] for place in range(count)]
    assert all(abs(games.count(game) - share * count) < len(shares) for game, share in enumerate(shares))


@given(SHARES, st.lists(st.integers(0, 100), min_size=1))
def test_a_place_has_the_same_game_in_whatever_order_places_are_asked(shares: list[float], places: list[int]) -> None:
    plan, fresh = SharePlan(shares), SharePlan(shares)
    in_order = [fresh.at(place) for place in range(101)]
    assert [plan.at(place) for place in places] == [in_order[place] for place in places]
    assert all(before == sum(game == other for other, _ in in_order[:i]) for i, (game, before) in enumerate(in_order))


def test_one_game_has_every_place() -> None:
    assert SharePlan([1.0]).at(10**9) == (0, 10**9)

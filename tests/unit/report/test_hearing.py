"""benchmarks/hearing.py: figures of dialogues, and their intervals."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import hearing
from benchmarks.hearing import Gain
from benchmarks.imitated import Heard
from spag_ray.config.loading import parse_config
from spag_ray.episodes.episode import Episode
from spag_ray.game.rules import EndReason, Outcome, Verdict, next_role
from spag_ray.game.turn import Turn
from tests.support.report_runs import write_log

RIVER, OTHER, PIANO = Heard("river", (1,)), Heard("river", (2,)), Heard("piano", (3,))


def test_a_dialogue_that_broke_the_rules_is_counted_as_one_of_its_word() -> None:
    found = hearing._kept_rules(["river", "piano", "river"], [RIVER, PIANO])
    assert sorted(found) == [Gain("piano", 1.0), Gain("river", 0.0), Gain("river", 1.0)]
    assert hearing._kept_rules(["river"], []) == [Gain("river", 0.0)]


def test_differences_leave_out_what_cannot_be_scored() -> None:
    found = hearing._differences([RIVER, OTHER, PIANO], [-1.0, None, -2.0], [-3.0, -1.0, -2.5])
    assert found == [Gain("river", 2.0), Gain("piano", 0.5)]


def test_pairs_are_means_of_the_words_that_both_have() -> None:
    def measure(heard: Sequence[Heard]) -> list[float]:
        return [-float(one.prompt_ids[0]) for one in heard]

    assert hearing._pairs_by_word(measure, [RIVER, OTHER, PIANO], [OTHER]) == [Gain("river", 0.5)]


def test_every_claim_counts_as_one_also_a_wrong_one_that_did_not_end_the_game(tmp_path: Path) -> None:
    said = ("It flows.", "I know the word! It is `lake`.", "It is longer.", "I know the word! It is `river`.")
    turns = [Turn.unsampled(next_role(place), text, (1,), (2,), "policy") for place, text in enumerate(said)]
    known = tuple(replace(turn, word_logprob=-float(place)) for place, turn in enumerate(turns))
    verdict = Verdict(Outcome.DEFENDER_WINS, EndReason.RIGHT_GUESS, 4, "right", 3, (0, 4))
    write_log(tmp_path, "eval-a", [Episode("a/0", 0, "eval-a", "river", 4, "strict", 1.0, known, verdict)])
    config = parse_config({"evaluation": {"games": 1}, "game": {"max_guesses": 2}})
    assert [gain.side for gain in hearing._claims(tmp_path, "a", config)] == [True, True]
    one = parse_config({"evaluation": {"games": 1}})
    assert [gain.side for gain in hearing._claims(tmp_path, "a", one)] == [False, True], "with one guess it was none"


def test_an_interval_is_over_words_with_all_their_values() -> None:
    gains = [Gain(word, value) for word, value in (("river", 0.0), ("piano", 1.0)) for _ in range(50)]
    assert hearing.mean_of(gains) == 0.5
    assert hearing.interval(gains) == (0.0, 1.0), "two words, however often each"
    assert hearing.interval([]) is None
    assert hearing.interval([], over_runs=True) is None
    runs = [Gain(f"{run}/{word}", float(run)) for run in (0, 1) for word in range(100)]
    assert hearing.interval(runs, over_runs=True) == (0.0, 1.0), "runs that differ"
    between = hearing.interval(runs)
    assert between is not None
    assert 0.4 < between[0] < 0.5 < between[1] < 0.6
    other = [gain._replace(side=False, value=0.25) for gain in gains]
    assert hearing.mean_of([*gains, *other]) == pytest.approx(0.25)

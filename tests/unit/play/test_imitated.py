"""benchmarks/imitated.py: what it reads of a run's games, and which dialogues it asks a model about."""

from pathlib import Path

import pytest

from benchmarks.imitated import NUM_HINTS, Measure, of_games
from spag_ray.config.loading import parse_config
from spag_ray.game.rules import Outcome
from spag_ray.games.taboo.decks import Card
from tests.support.episodes import game
from tests.support.report_runs import write_log
from tests.support.typed import ROOT

CARDS = {
    "river": Card("river", ("water", "long", "old", "green")),
    "piano": Card("piano", ("music", "big", "old", "talk")),
}


def test_the_shares_are_those_of_the_stages_games() -> None:
    found = of_games(ROOT / "tests" / "golden" / "run_folders" / "rounds", "base")
    assert found == {
        "right_guesses": 0.0,
        "guesses_that_are_right": None,
        "rule_violations": 0.5,
        "ties": 0.5,
        "traps_of_attacker_wins": None,
    }


def test_rule_violations_are_those_of_both_seats(tmp_path: Path) -> None:
    ends = (Outcome.ATTACKER_BREACH, Outcome.DEFENDER_BREACH, Outcome.TIED, Outcome.TIED)
    write_log(tmp_path, "eval-base", (game(number, end) for number, end in enumerate(ends)))
    assert of_games(tmp_path, "base")["rule_violations"] == 0.5


def test_an_expert_and_the_model_itself_give_four_hints_and_the_model_is_scored_after_them(tiny_model: Path) -> None:
    engine = {"kind": "transformers", "dtype": "float32"}
    config = parse_config({"model": str(tiny_model), "engine": engine, "sampling": {"max_new_tokens": 4}})
    with Measure(config, tiny_model) as measure:
        heard = measure.by_expert(list(CARDS), CARDS, 0.0, seed=1)
        assert [one.word for one in heard] == ["river", "piano"]
        for one, clues in zip(heard, (card.clues for card in CARDS.values()), strict=True):
            text = measure._renderer.text_of(one.prompt_ids)
            assert one.word not in text
            assert sum(clue in text for clue in clues) == NUM_HINTS
        own = measure.by_itself(list(CARDS), seed=1)
        assert {one.word for one in own} <= set(CARDS)
        assert own == measure.by_itself(list(CARDS), seed=1)
        [first, _] = measure.first_hint_logprobs(heard)
        turn = heard[0].turns[0]
        [score] = measure._runner.run(measure._policy.score([(turn.prompt_ids, turn.token_ids)]))
        assert first == pytest.approx(sum(score.logprobs[:-1]) / (len(turn.token_ids) - 1))
        assert measure.first_choices(heard) in (0.0, 0.5, 1.0)
        assert measure.first_choices([]) is None
        gain = measure.own_minus_other(heard)
        assert gain is not None
        assert gain == pytest.approx(measure.own_minus_other(heard[::-1]))

"""Whoever reads scores of a run with cooperative payoffs is told so."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from spag_ray.config.loading import parse_config
from spag_ray.results.model_card import BaseModel, write_cards
from spag_ray.results.payoffs_told import cooperative_note, payoffs_line
from tests.support.old_run_folders import placed
from tests.support.report_page import page_of

HELPING = {"right_guess": [1, 1], "cooperative": True}
NOTE = "Trained with cooperative payoffs: a right guess paid the attacker at least as much as a tie."


def told(**settings: Any) -> tuple[str | None, str | None]:
    config = parse_config({"objective": {"learn_from": "both"}, **settings})
    return payoffs_line(config), cooperative_note(config)


@pytest.mark.parametrize(
    ("settings", "line", "which"),
    [
        ({}, None, None),
        ({"game": {"payoffs": {"cooperative": True}}}, None, None),
        ({"game": {"payoffs": HELPING}}, "rounds 1 to 3: game.payoffs, cooperative", ""),
        ({"game": {"payoffs": HELPING}, "self_play": {"rounds": 0}}, None, None),
        ({"self_play": {"phases": [{"rounds": 3, "payoffs": HELPING}]}}, "rounds 1 to 3: phase 1, cooperative", ""),
        (
            {"self_play": {"rounds": 5, "phases": [{"rounds": rounds, "payoffs": HELPING} for rounds in (1, 3)]}},
            "round 1: phase 1, cooperative; rounds 2 to 4: phase 2, cooperative; round 5: game.payoffs",
            " (round 1, rounds 2 to 4)",
        ),
        ({"self_play": {"phases": [{"rounds": 1}]}}, "rounds 1 to 3: game.payoffs", None),
        (
            {"self_play": {"phases": [{"rounds": 1, "payoffs": each} for each in (HELPING, {}, HELPING)]}},
            "round 1: phase 1, cooperative; round 2: phase 2; round 3: phase 3, cooperative",
            " (round 1, round 3)",
        ),
        (
            {"game": {"payoffs": {**HELPING, "right_guess": [None, 1]}}},
            None,
            None,
        ),  # nothing trains the attacker to help
    ],
)
def test_rounds_are_told_with_their_payoffs(settings: dict[str, Any], line: str | None, which: str | None) -> None:
    assert told(**settings)[0] == line
    note = told(**settings)[1]
    assert note == (None if which is None else f"{NOTE.replace(':', which + ':', 1)} Scores, ratings and wins count it "
                    "for the defender alone.")  # fmt: skip


def test_the_report_and_the_cards_say_that_payoffs_were_cooperative(tmp_path: Path) -> None:
    run = placed("rounds", tmp_path)
    assert "cooperative payoffs" not in page_of(run).text
    write_cards(run, BaseModel("tiny"))
    card = run / "models" / "spag-2" / "README.md"
    assert "cooperative payoffs" not in card.read_text()
    settings = yaml.safe_load((run / "config.yaml").read_text())
    settings["game"]["payoffs"] |= HELPING
    settings["objective"] |= {"learn_from": "both", "loser_turns": "all"}
    (run / "config.yaml").write_text(yaml.safe_dump(settings))
    page = page_of(run)
    assert page.text.count(NOTE) == 2, "at the top, and above the standings"
    assert page.text.index("Standings") < page.text.rindex(NOTE) < page.text.index("% of games, 95% interval")
    write_cards(run, BaseModel("tiny"))
    assert card.read_text().count(NOTE) == 1
    (run / "matches.json").unlink()
    assert page_of(run).text.count(NOTE) == 1

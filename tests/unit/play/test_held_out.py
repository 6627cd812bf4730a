"""Matches on held-out words: what is counted of them beside their results."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.schedules import held_out
from cluster.schedules.held_out import HeldOutMatches
from cluster.tracking.recorder import Recorder
from spag_ray.config.loading import parse_config
from spag_ray.game.rules import Outcome
from spag_ray.stages import Stage
from tests.support.episodes import game


@pytest.mark.parametrize(("name", "kinds"), [("taboo", ["held_out"]), ("kuhn", [])])
def test_guesses_and_traps_are_counted_in_taboo_alone(
    name: str, kinds: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    episodes = [game(number, Outcome.DEFENDER_WINS) for number in range(4)]
    monkeypatch.setattr(held_out, "play_round", lambda *_: episodes)
    config = parse_config({"game": {"name": name}, "evaluation": {"games": 4}})
    ground: Any = SimpleNamespace(config=config, folder=tmp_path, recorder=Recorder(tmp_path), version=1)
    lease: Any = SimpleNamespace(check=lambda now: None)
    seat: Any = None
    match = HeldOutMatches(ground, lease, ["KJ", "QK"]).play(seat, seat, Stage.evaluation("spag-1"))
    assert match.outcomes[Outcome.DEFENDER_WINS] == 4
    assert [json.loads(line)["kind"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()] == kinds

"""A whole run of a TextArena environment: imitation of scripted seats, two rounds of self-play, a match, the report."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cluster.commands.report import make_report
from cluster.commands.train import run_training
from spag_ray.episodes.log import read_log
from spag_ray.game.game_form import verdict_of
from spag_ray.games.registry import load_game
from spag_ray.results.matches import read_matches
from tests.support.not_here import needs_textarena
from tests.support.runs import quiet, tiny_run
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.usefixtures("local_ray")

WORDS = ("player", "board", "current", "available", "moves", "game", "x", "cell", *"[]()'012345678|-+")
NAME = "textarena:TicTacToe-v0"


@pytest.mark.long  # another whole run with vLLM; test_games.py has one of Kuhn poker
@pytest.mark.timeout(300)
def test_tic_tac_toe_of_textarena_is_trained_for_two_rounds(tmp_path: Path) -> None:
    needs_textarena()
    config = tiny_run(
        make_tiny_model(tmp_path / "model", more_words=WORDS),
        Path("deck"),
        prompts="chat",
        game={"name": "textarena", "env": "TicTacToe-v0", "max_turns": 5},
        sampling={"temperature": 1.0, "max_new_tokens": 4},
        engine={"max_model_len": 1024},
        imitation={"games": 24, "batch_games": 4, "learning_rate": 1e-2, "learn_from": "all"},
        objective={"learn_from": "both", "baseline": "scenario", "role_weights": "none"},
        self_play={"rounds": 2, "games_per_round": 16},
    )
    folder = tmp_path / "run"
    run_training(config, folder, quiet())
    game = load_game(NAME)
    expert = list(read_log(folder / "episodes" / "expert.log"))
    assert {str(episode.verdict.end_reason) for episode in expert} <= {"won", "draw"}, "scripted moves are accepted"
    for stage in ("spag-1", "spag-2"):
        episodes = list(read_log(folder / "episodes" / f"{stage}.log"))
        assert len(episodes) == 16
        for episode in episodes:
            assert episode.game == NAME
            assert episode.scenario == "0"
            if episode.verdict.end_reason != "context full":
                assert verdict_of(game, [turn.text for turn in episode.turns], "0") == episode.verdict
    assert len(read_matches(folder / "matches.json")) > 0
    assert json.loads((folder / "game.json").read_text())["seats"] == ["first player", "second player"]
    make_report(folder, tmp_path / "report.html", quiet())
    assert NAME in (tmp_path / "report.html").read_text()

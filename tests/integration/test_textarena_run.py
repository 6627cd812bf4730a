"""Whole runs of TextArena's environments, of one and of SPIRAL's three: imitation of scripted seats, two rounds of
self-play, matches, the report."""

import json
from collections import Counter
from pathlib import Path

import pytest

from cluster.commands.report import make_report
from cluster.commands.train import run_training
from spag_ray.config.loading import find_config, parse_config
from spag_ray.config.run import merged
from spag_ray.episodes.log import read_log
from spag_ray.game.game_form import verdict_of
from spag_ray.games.registry import load_game
from spag_ray.results.matches import read_matches
from tests.support.not_here import needs_textarena
from tests.support.runs import quiet, records_of, tiny_run
from tests.support.shrunk import shrunk
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.usefixtures("local_ray")

WORDS = ("player", "board", "current", "available", "moves", "game", "x", "cell", *"[]()'012345678|-+")
NAME = "textarena:TicTacToe-v0"
SPIRALS = ("TicTacToe-v0", "KuhnPoker-v0", "SimpleNegotiation-v0")
MOVES = ("check", "bet", "call", "fold", "offer", "accept", "deny", "wheat", "wood", "sheep", "brick", "ore", ":", "->")


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
    (names,) = json.loads((folder / "game.json").read_text())["games"].values()
    assert names["seats"] == ["first player", "second player"]
    make_report(folder, tmp_path / "report.html", quiet())
    assert NAME in (tmp_path / "report.html").read_text()


@pytest.mark.long  # another whole run with vLLM
@pytest.mark.timeout(400)
def test_spirals_three_games_train_a_tiny_model_for_two_rounds(tmp_path: Path) -> None:
    needs_textarena()
    model = make_tiny_model(tmp_path / "model", more_words=(*WORDS, *MOVES, "9"))
    small = shrunk(find_config("spiral_games"), model)
    two_rounds = {"self_play": {"rounds": 2, "games_per_round": 24}, "imitation": {"games": 24, "batch_games": 4}}
    config, folder = parse_config(merged(small.model_dump(mode="json"), two_rounds)), tmp_path / "run"
    run_training(config, folder, quiet())
    games = {f"textarena:{name}": load_game(f"textarena:{name}") for name in SPIRALS}
    for stage in ("expert", "spag-1", "spag-2"):
        episodes = list(read_log(folder / "episodes" / f"{stage}.log"))
        assert Counter(episode.game for episode in episodes) == dict.fromkeys(games, 8)
        for episode in episodes:
            if episode.verdict.end_reason != "context full":
                texts = [turn.text for turn in episode.turns]
                assert verdict_of(games[episode.game], texts, episode.scenario) == episode.verdict
    assert [line["version"] for line in records_of(folder, "sync")] == [1, 2, 3]
    played = {match.game for match in read_matches(folder / "matches.json")}
    assert played == set(games)
    make_report(folder, tmp_path / "report.html", quiet())
    page = (tmp_path / "report.html").read_text()
    assert all(name in page for name in games)

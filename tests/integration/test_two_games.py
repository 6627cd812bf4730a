"""Whole runs of two games, Taboo and Kuhn poker: each gets its share and its own evaluation, baselines and pages; and a
run that was cut resumes as if it had not been."""

import json
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from rich.console import Console
from safetensors.numpy import load_file

from cluster.commands.data import run_export
from cluster.commands.train import run_training
from cluster.launch.placed_run import every_words, placed_run
from cluster.run.checkpoint import Checkpoints
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.loading import load_config
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.games.taboo.decks import load_deck
from spag_ray.results.matches import of_game, read_matches
from tests.support.report_page import page_of
from tests.support.runs import quiet, records_of, stream_run, tiny_run
from tests.support.tiny_model import make_tiny_model

pytestmark = pytest.mark.usefixtures("local_ray")

WORDS = ("kuhn", "poker", "cards", "card", "jack", "queen", "check", "bet", "call", "fold", "player", "other", "chip")
TIES = {"tie": [-0.5, -0.5]}  # so that a model that says nothing has something to learn from
GAMES = [
    {"name": "taboo", "share": 0.25, "max_turns": 2, "payoffs": TIES},
    {"name": "kuhn", "share": 0.75, "objective": {"role_weights": "none"}},
]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("two"), more_words=WORDS)


def two(model: Path, words: Path, **changes: Any) -> RunConfig:
    """Float32, one sequence at a time, learned in game order: the same weights whenever it is run."""
    settings: dict[str, Any] = {
        "games": GAMES,
        "engine": {"kind": "transformers", "num_cpus": 0.5},
        "sampling": {"temperature": 1.0, "max_new_tokens": 6},
        "imitation": {"games": 16, "batch_games": 4, "learning_rate": 1e-2, "learn_from": "all"},
        "self_play": {"rounds": 2, "games_per_round": 16, "games_in_flight": 1, "batch_games": 4},
        "objective": {"learn_from": "both", "baseline": "moving"},
        "evaluation": {"games": 4, "against": ["base"]},
        "checkpoint": {"every_s": 0.001, "keep_last": 1000},  # one for every step
    }
    return tiny_run(model, words, **{**settings, **changes})


@pytest.fixture(scope="module")
def whole(model: Path, words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "run"
    run_training(two(model, words), folder, quiet())
    return folder


def run_until(config: RunConfig, folder: Path, is_time: Callable[[], bool]) -> None:
    """A run whose Run actor, and with it everything, is killed when it is time."""
    make_run_folder(folder, config)
    cards = load_deck("everyday")
    with placed_run(config, folder, config.model, *every_words(config, cards), cards) as run:
        training = run.train.remote()
        while not is_time():
            assert not ray.wait([training], timeout=0.02)[0], ray.get(training)
        ray.kill(run)


@pytest.mark.long  # a whole run of two games
@pytest.mark.timeout(400)
def test_every_game_is_played_by_its_share_and_has_results_of_its_own(whole: Path) -> None:
    for stage, count in (("expert", 16), ("spag-1", 16), ("spag-2", 16)):
        episodes = sorted(read_log(whole / "episodes" / f"{stage}.log"), key=lambda episode: episode.number)
        games = [episode.game for episode in episodes]
        assert Counter(games) == {"taboo": count // 4, "kuhn": 3 * count // 4}
        assert all(games[:place].count("taboo") in (place // 4, place // 4 + 1) for place in range(count)), "all along"
    matches = read_matches(whole / "matches.json")
    for game in ("taboo", "kuhn"):
        met = {(match.attacker, match.defender): len(match.games) for match in of_game(matches, game)}
        assert met["spag-2", "spag-2"] == met["spag-2", "base"] == met["base", "spag-2"] == 4
    played = [line for line in records_of(whole, "play") if line["stage"] == "spag-1"]
    assert [(line["game"], line["games"]) for line in played] == [("kuhn", 12), ("taboo", 4)]
    exact = records_of(whole, "exploitability")
    assert [(line["stage"], line["game"]) for line in exact] == [
        (stage, "kuhn") for stage in ("base", "imitated", "spag-1", "spag-2")
    ]
    assert {line["stage"] for line in records_of(whole, "held_out")} >= {"eval-base", "eval-spag-2"}, "of Taboo"
    newest = Checkpoints(whole, load_config(str(whole / "config.yaml")).checkpoint).newest()
    assert newest is not None
    assert set(newest[1].baselines or {}) == {"taboo", "kuhn"}
    assert any((newest[1].baselines or {})["kuhn"].values()), "what it was paid, on average"


@pytest.mark.long  # of the same run
@pytest.mark.timeout(400)
def test_pages_and_files_name_both_games(whole: Path, tmp_path: Path) -> None:
    page = page_of(whole)
    for part in ("Adversarial Taboo and kuhn", "taboo (25%), kuhn (75%)", "NashConv", "right guesses", "Mean payoff"):
        assert part in page.text, part
    index = page.unpacked("index")
    assert [game["name"] for game in index["games"]] == ["Adversarial Taboo", "kuhn"]
    assert Counter(index["game"])[1] > Counter(index["game"])[0]
    card = (whole / "models" / "spag-2" / "README.md").read_text()
    for part in ("taboo (0.25), kuhn (0.75)", "### Adversarial Taboo", "### kuhn", "exact figure of kuhn"):
        assert part in card, part
    out = tmp_path / "rows.jsonl"
    run_export(whole, "jsonl", "turns", ["spag-1"], out, Console(quiet=True))
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    seats = {(row["game"], row["seat"]) for row in rows}
    assert seats >= {("taboo", "attacker"), ("kuhn", "first")}
    assert {seat for _, seat in seats} <= {"attacker", "defender", "first", "second"}


@pytest.mark.long  # a run of one game that was cut: test_resume.py
@pytest.mark.timeout(400)
def test_a_cut_run_of_two_games_has_the_same_weights(model: Path, words: Path, whole: Path, tmp_path: Path) -> None:
    """Cut in the second round's steps: words, baselines and weights are those of the last checkpoint."""
    folder, config = tmp_path / "run", two(model, words)

    def learns() -> bool:
        metrics = folder / "metrics.jsonl"
        return metrics.exists() and any(line["stage"] == "spag-2" for line in records_of(folder, "step"))

    run_until(config, folder, learns)
    run_training(config, folder, quiet(), resume=True)
    for stage in ("imitated", "spag-1", "spag-2"):
        ours, theirs = (load_file(each / "models" / stage / "model.safetensors") for each in (folder, whole))
        assert ours.keys() == theirs.keys()
        assert all((ours[name] == theirs[name]).all() for name in ours), stage
    first, second = (Checkpoints(each, config.checkpoint).newest() for each in (folder, whole))
    assert first is not None
    assert second is not None
    assert first[1].baselines == second[1].baselines
    assert first[1].words == second[1].words
    assert read_matches(folder / "matches.json") == read_matches(whole / "matches.json")


@pytest.mark.long  # another whole run
@pytest.mark.timeout(400)
def test_a_stream_of_two_games_is_played_by_its_shares(model: Path, words: Path, tmp_path: Path) -> None:
    config = stream_run(model, words, 3, learner={"timeout_s": 120}, engine={"num_engines": 1}, stream={"max_lag": 1})
    folder, settings = tmp_path / "run", config.model_dump(mode="json")
    del settings["game"]
    settings |= {"games": GAMES, "evaluation": {"games": 2}}
    run_training(RunConfig.model_validate(settings), folder, quiet())
    games = Counter(episode.game for episode in read_log(folder / "episodes" / "stream.log"))
    assert games["kuhn"] > games["taboo"] > 0
    last = {line["game"]: line for line in records_of(folder, "games") if line["phase"] == "self_play"}
    assert set(last) == {"taboo", "kuhn"}
    newest = Checkpoints(folder, config.checkpoint).newest()
    assert newest is not None
    assert [name for name, _, _ in (newest[1].words or {})["games"]] == ["taboo", "kuhn"]

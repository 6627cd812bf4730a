"""A whole run whose rounds replace groups that all agree: real arenas, buffer, log and learner, and a resume."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import ray
from safetensors.numpy import load_file

from cluster.commands.train import run_training
from cluster.launch.placed_run import every_words, placed_run
from cluster.runtime.run_folder import make_run_folder
from spag_ray.config.run import RunConfig
from spag_ray.episodes.log import read_log
from spag_ray.games.taboo.decks import load_deck
from tests.support.runs import quiet, records_of, tiny_run

pytestmark = pytest.mark.usefixtures("local_ray")
TIES = {"tie": [-0.5, -0.5]}  # so that a model that says nothing is paid, most often the same


def refilled(model: Path, words: Path) -> RunConfig:
    """Eight games about two words, and up to three words more. One game after the other, for the same weights whenever
    it is run."""
    settings: dict[str, Any] = {
        "engine": {"kind": "transformers", "num_cpus": 0.5},
        "game": {"max_turns": 1, "payoffs": TIES},
        "words": {"games_per_word": 4, "num_held_out": 2},
        "sampling": {"temperature": 1.0, "max_new_tokens": 4},
        "imitation": {"enabled": False},
        "self_play": {"rounds": 1, "games_per_round": 8, "games_in_flight": 1, "batch_games": 4, "refill_agreeing": 3},
        "objective": {"learn_from": "both", "baseline": "scenario", "baseline_std": "batch", "drop_agreeing": True},
        "evaluation": {"games": 0},
    }
    return tiny_run(model, words, **settings)


def log_of(folder: Path) -> Path:
    return folder / "episodes" / "spag-1.log"


@pytest.mark.long  # a whole run, and one that is cut; test_resume_anywhere.py has it without engines
@pytest.mark.timeout(400)
def test_a_round_plays_groups_in_place_of_those_that_agree_and_a_resume_plays_none_twice(
    tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    config, whole, cut = refilled(tiny_model, words), tmp_path / "whole", tmp_path / "cut"
    run_training(config, whole, quiet())
    games = sorted(read_log(log_of(whole)), key=lambda episode: episode.number)
    assert [each.number for each in games] == list(range(len(games)))
    (line,) = records_of(whole, "groups")
    assert line["refilled"] > 0
    assert len(games) == 8 + 4 * line["refilled"]
    played = [each.scenario for each in games]
    assert [played[place : place + 4] for place in range(0, len(played), 4)] == [[word] * 4 for word in played[::4]]
    assert [each["games"] for each in records_of(whole, "play")] == [len(games)], "one line of the whole stage"

    run_until(config, cut, lambda: log_of(cut).exists() and len(list(read_log(log_of(cut)))) > 8)
    num_before = len(list(read_log(log_of(cut))))
    assert num_before < len(games), "it was cut while it refilled"
    run_training(config, cut, quiet(), resume=True)
    again = sorted(read_log(log_of(cut)), key=lambda episode: episode.number)
    assert [(each.number, each.scenario) for each in again] == [(each.number, each.scenario) for each in games]
    (line,) = records_of(cut, "groups")
    assert len(again) == 8 + 4 * line["refilled"]
    ours, theirs = (load_file(each / "models" / "spag-1" / "model.safetensors") for each in (cut, whole))
    assert all((ours[name] == theirs[name]).all() for name in theirs)


def run_until(config: RunConfig, folder: Path, is_time: Callable[[], bool]) -> None:
    """A run whose Run actor, and with it everything, is killed when it is time."""
    make_run_folder(folder, config)
    with placed_run(config, folder, config.model, *every_words(config, cards := load_deck("everyday")), cards) as run:
        training = run.train.remote()
        while not is_time():
            assert not ray.wait([training], timeout=0.02)[0], ray.get(training)
        ray.kill(run)

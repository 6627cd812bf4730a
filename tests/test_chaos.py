"""Every kind of process of a run is killed or hangs while it runs: it comes to its end, nothing finished is lost."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import ray
from conftest import TARGETS
from faults import FAULTS, FaultyRun, hit
from runs import records_of, stream_run, tiny_run

from cluster.launch import placed_run
from cluster.run_folder import make_run_folder
from spag_ray.episode_log import read_log

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.slow  # a run of two minutes
@pytest.mark.timeout(580)
def test_a_stream_goes_on_whatever_is_killed(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    faults = ["engine killed", "learner killed", "buffer killed", "arena killed", "run killed"]
    config = stream_run(tiny_model, words, 40, engine={"kind": "transformers"})
    run = FaultyRun(config, tmp_path / "run", faults, gap_s=1, seed=0)
    run.to_the_end()
    run.check(40)
    again = {line["what"].split("-")[0] for line in records_of(tmp_path / "run", "restart")}
    assert again >= {"engine", "learners", "arena", "buffer"} and records_of(tmp_path / "run", "resumed")


@pytest.mark.chaos  # twenty minutes
@pytest.mark.timeout(1790)
def test_thirty_faults(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    """Real vLLM engines; every kind of fault at least four times, in an order of the seed's."""
    kinds = sorted(FAULTS)
    faults = [kinds[number % len(kinds)] for number in range(30)]
    random.Random(0).shuffle(faults)
    num_parts = 400
    run = FaultyRun(stream_run(tiny_model, words, num_parts), tmp_path / "run", faults, gap_s=5, seed=0)
    run.to_the_end()
    print("\nfrom the fault to the next published version, shortest / median / longest:")
    print(run.table())
    run.check(num_parts)


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_learner_that_dies_while_games_of_a_round_are_played_is_replaced_at_once(
    tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    num_games = 200
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers", "num_cpus": 0.5},
        learner={"num_cpus": 0.5},
        imitation={"enabled": False},
        game={"breach": "penalise"},
        objective={"learn_from": "both"},
        self_play={"rounds": 1, "games_per_round": num_games, "games_in_flight": 4},
        evaluation={"games": 0},
    )
    folder = make_run_folder(tmp_path / "run", config)
    log = folder / "episodes" / "spag-1.log"
    targets = list(TARGETS)
    with placed_run(config, folder, config.model, targets[2:], targets[:2], {}) as run:
        training = run.train.remote()
        while not (log.exists() and sum(1 for _ in read_log(log)) >= 5):
            assert not ray.wait([training], timeout=0.05)[0], ray.get(training)
        assert hit("learner killed", random.Random(0))
        ray.get(training)
    (restart,) = records_of(folder, "restart")
    (resumed,) = records_of(folder, "resumed")
    assert restart["what"] == "learners" and resumed["checkpoint"] == "start"
    (play,) = records_of(folder, "play")
    assert resumed["time"] < play["time"], "before the round's last game"
    assert sorted(episode.number for episode in read_log(log)) == list(range(num_games))
    assert len(records_of(folder, "play")) == 1 and play["games"] == num_games

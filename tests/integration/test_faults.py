"""Processes of a run are killed or hang while it runs: it comes to its end, nothing finished is lost."""

import random
from pathlib import Path

import pytest
import ray

from cluster.launch.placed_run import placed_run
from cluster.runtime.run_folder import make_run_folder
from spag_ray.episodes.log import read_log
from tests.support.faults import FaultyRun, hit, kill_engine
from tests.support.runs import PENALISED, records_of, stream_run, tiny_run
from tests.support.tiny_model import TARGETS

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.long  # three minutes; an engine is killed in test_end_to_end.py
@pytest.mark.timeout(580)
def test_a_stream_goes_on_whatever_is_killed(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    faults = ["engine killed", "learner killed", "buffer killed", "arena killed", "run killed"]
    config = stream_run(tiny_model, words, 40, engine={"kind": "transformers"})
    run = FaultyRun(config, tmp_path / "run", faults, gap_s=1, seed=0)
    run.to_the_end()
    run.check(40)
    again = {line["what"].split("-")[0] for line in records_of(tmp_path / "run", "restart")}
    assert again >= {"engine", "learners", "arena", "buffer"}
    assert records_of(tmp_path / "run", "resumed")


@pytest.mark.long
@pytest.mark.timeout(580)
@pytest.mark.parametrize("kind", ["transformers", "vllm"])
def test_an_opponents_engine_that_is_killed_is_replaced_and_the_league_plays_on(
    kind: str, tiny_model: Path, words: Path, tmp_path: Path
) -> None:
    """Every version another opponent is drawn: the engine that has been replaced is given its weights as well."""
    faults = ["opponent engine killed"] * 2
    config = stream_run(
        tiny_model, words, 40, engine={"kind": kind, "num_engines": 1}, league={"past_share": 0.5, "max_snapshots": 2}
    )
    run = FaultyRun(config, tmp_path / "run", faults, gap_s=3, seed=0, hit=lambda *_: kill_engine("-past-"))
    run.to_the_end()
    print("\n" + run.table())
    run.check(40)
    folder = tmp_path / "run"
    names = ["engine-policy-past-0-0", "engine-policy-past-0-0.2", "engine-policy-past-0-0.3"]
    assert [line["what"] for line in records_of(folder, "restart")] == names[:2]
    joined = records_of(folder, "engine_joined")  # the second may have been killed while it started
    assert joined[-1]["engine"] == names[2]
    episodes = read_log(folder / "episodes" / "stream.log")
    played = {turn.first_version for each in episodes for turn in each.turns if turn.policy == "past policy"}
    assert max(played) > joined[-1]["version"], "it was given later versions, and played them"


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_learner_that_dies_during_games_is_replaced_at_once(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    num_games = 200
    config = tiny_run(
        tiny_model,
        words,
        engine={"kind": "transformers", "num_cpus": 0.5},
        learner={"num_cpus": 0.5},
        imitation={"enabled": False},
        game={"payoffs": PENALISED},
        objective={"learn_from": "both"},
        self_play={"rounds": 1, "games_per_round": num_games, "games_in_flight": 4},
        evaluation={"games": 0},
    )
    folder = make_run_folder(tmp_path / "run", config)
    log = folder / "episodes" / "spag-1.log"
    targets = list(TARGETS)
    with placed_run(config, folder, config.model, {"taboo": targets[2:]}, {"taboo": targets[:2]}, {}) as run:
        training = run.train.remote()
        while not (log.exists() and sum(1 for _ in read_log(log)) >= 5):
            assert not ray.wait([training], timeout=0.05)[0], ray.get(training)
        assert hit("learner killed", random.Random(0))
        ray.get(training)
    (restart,) = records_of(folder, "restart")
    (resumed,) = records_of(folder, "resumed")
    assert restart["what"] == "learners"
    assert resumed["checkpoint"] == "start"
    (play,) = records_of(folder, "play")
    assert resumed["time"] < play["time"], "before the round's last game"
    assert sorted(episode.number for episode in read_log(log)) == list(range(num_games))
    assert len(records_of(folder, "play")) == 1
    assert play["games"] == num_games

"""A match of two stages on one engine, which takes both players' weights in turn and is killed in the middle."""

import asyncio
import threading
from pathlib import Path

import pytest

from actors.transformers_policy import TransformersPolicy
from cluster.commands.train import run_training
from spag_ray.episodes.log import read_log
from spag_ray.game.rules import Role
from spag_ray.results.matches import read_matches
from tests.support.faults import kill_engine
from tests.support.runs import quiet, records_of, tiny_run

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.long  # players in turn also play in test_shipped_configs.py
@pytest.mark.timeout(400)
def test_every_turn_on_one_engine_has_the_weights_of_its_player(tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(
        tiny_model,
        words,
        placement="colocated",
        engine={"num_cpus": 0.5},
        learner={"num_cpus": 0.5},
        self_play={"rounds": 1, "games_per_round": 24, "batch_games": 8, "learning_rate": 1e-3},
        evaluation={"games": 12, "against": ["base"], "engines": "in_turn", "could_have_known": False},
    )
    folder = tmp_path / "run"
    first, is_over, killed = folder / "episodes" / "match-imitated@base.log", threading.Event(), []

    def kill() -> None:
        while not (first.exists() and kill_engine("engine-policy-0.log")):
            if is_over.wait(0.02):
                return
        killed.append("engine-policy-0")

    killer = threading.Thread(target=kill)
    killer.start()
    try:
        run_training(config, folder, quiet())
    finally:
        is_over.set()
        killer.join()
    assert killed == [line["what"] for line in records_of(folder, "restart")] == ["engine-policy-0"]
    assert {log.stem for log in (folder / "logs").glob("engine-*.log")} == {"engine-policy-0", "engine-policy-0.2"}
    met = {(match.attacker, match.defender) for match in read_matches(folder / "matches.json")}
    pairs = {("imitated", "base"), ("spag-1", "base"), ("spag-1", "imitated")}
    assert met - {(name, name) for name in ("base", "imitated", "spag-1")} == pairs | {pair[::-1] for pair in pairs}
    models = {"base": tiny_model} | {name: folder / "models" / name for name in ("imitated", "spag-1")}
    for pair in pairs | {pair[::-1] for pair in pairs} | {("spag-1", "spag-1")}:
        stage = f"match-{pair[0]}@{pair[1]}" if pair[0] != pair[1] else f"eval-{pair[0]}"
        episodes = list(read_log(folder / "episodes" / f"{stage}.log"))
        assert len(episodes) == 12
        for role, name in zip(Role, pair, strict=True):
            turns = [turn for episode in episodes for turn in episode.turns if turn.role is role]
            asked = [(turn.prompt_ids, turn.token_ids) for turn in turns]
            scores = asyncio.run(TransformersPolicy(str(models[name])).score(asked))
            for turn, score in zip(turns, scores, strict=True):
                assert turn.logprobs == pytest.approx(score.logprobs, abs=2e-3), (stage, name)

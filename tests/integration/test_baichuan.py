"""A folder as Baichuan2-13B is published, tiny: converted, played, trained, synced, and played again."""

import asyncio
from pathlib import Path

import pytest

from actors.transformers_policy import TransformersPolicy
from cluster.cli import app
from cluster.commands.train import run_training
from cluster.guarded import run_guarded
from spag_ray.episodes.log import read_log
from tests.support.baichuan import make_baichuan
from tests.support.runs import quiet, records_of, steps_of, tiny_run

pytestmark = pytest.mark.usefixtures("local_ray")


@pytest.mark.long
@pytest.mark.timeout(400)
def test_a_converted_13b_plays_learns_and_plays_with_its_new_weights(words: Path, tmp_path: Path) -> None:
    source, model, folder = (tmp_path / name for name in ("published", "model", "run"))
    make_baichuan(source, alibi=True)
    assert run_guarded(lambda **options: app(["convert", str(source), str(model)], **options)) == 0
    changes = {
        "prompts": "lines",
        "learner": {"packing": "none"},
        "self_play": {"rounds": 1, "games_per_round": 8},
        # Random weights decide no game: ties are trained on.
        "game": {"payoffs": {"tie": [0.2, 0.1]}},
        "objective": {"learn_from": "both"},
    }
    run_training(tiny_run(model, words, evaluation={"games": 2}, **changes), folder, quiet())
    assert [line["version"] for line in records_of(folder, "sync")] == [1, 2]
    played = [line for line in steps_of(folder) if line["stage"] != "imitated"]
    assert played
    # vLLM's log-probabilities are the learner's.
    assert all(line["mismatch_mean"] == pytest.approx(1.0, abs=0.01) for line in played)
    # And those of transformers' forward pass, with the weights of the run's end.
    turns = [turn for episode in read_log(folder / "episodes" / "eval-spag-1.log") for turn in episode.turns]
    policy = TransformersPolicy(str(folder / "models" / "spag-1"))
    scores = asyncio.run(policy.score([(turn.prompt_ids, turn.token_ids) for turn in turns]))
    for turn, score in zip(turns, scores, strict=True):
        assert turn.logprobs == pytest.approx(score.logprobs, abs=1e-3)

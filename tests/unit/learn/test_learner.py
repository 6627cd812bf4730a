"""The learner: one real DeepSpeed rank on a tiny model."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from learners.batch import check_turns
from learners.engine import World
from learners.learner import share_of
from learners.model_folder import load_model
from spag_ray.errors import LearnerError, ModelError
from spag_ray.training_data.samples import TurnSample


def test_ranks_share_the_games_completely_and_evenly() -> None:
    sizes = [50, 10, 40, 30, 20, 35, 5]
    world = World(size=3)
    shares = [share_of(sizes, replace(world, rank=rank)) for rank in range(3)]
    assert sorted(index for share in shares for index in share) == list(range(7))
    loads = [sum(sizes[index] for index in share) for share in shares]
    assert max(loads) - min(loads) <= max(sizes) / 2


def test_weights_of_another_architecture_and_unknown_tokens_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(tiny_model, broken)
    config = json.loads((broken / "config.json").read_text())
    config["num_hidden_layers"] += 1
    (broken / "config.json").write_text(json.dumps(config))
    with pytest.raises(ModelError, match=r"missing keys, such as model\.layers\.2"):
        load_model(str(broken), torch.float32, "sdpa")
    with pytest.raises(LearnerError, match="token id 900, the model's vocabulary has 64"):
        check_turns([TurnSample((1, 2), (900,), 1.0)], vocabulary_size=64)

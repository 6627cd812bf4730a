"""Every shipped configuration needs a model folder and nothing else. What it plans is in test_plan.py, and a run of it,
made small, in tests/integration/test_shipped_configs.py."""

from pathlib import Path

import pytest

from cluster.launch.placed_run import cards_of, every_words
from cluster.planning.plan_checks import check_plan
from spag_ray.config.loading import load_config
from tests.support.not_here import needs_games_of
from tests.support.shipped import SHIPPED
from tests.support.shrunk import shrunk

GPU_CONFIGS = [path for path in SHIPPED if "gpu" in path.stem]


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_a_shipped_configuration_needs_a_model_folder_and_nothing_else(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = load_config(str(path))
    needs_games_of(config)
    assert check_plan(config) == [f"model {config.model}"]
    cards = cards_of(config)
    words, held_out = every_words(config, cards)
    assert tuple(words) == tuple(held_out) == config.game_names
    for own in (*words.values(), *held_out.values()):
        assert len(own) >= 1


@pytest.mark.parametrize("path", GPU_CONFIGS, ids=[path.stem for path in GPU_CONFIGS])
def test_a_configuration_for_gpus_watches_for_collapse_and_meets_the_base_model(path: Path) -> None:
    config = load_config(str(path))
    assert config.self_play.on_collapse == "warn"
    assert config.evaluation.against == ("base",)
    assert config.channel == {"separate": "nccl", "colocated": "ipc"}[config.placement]
    assert config.engine.gpu_memory_utilization >= 0.8


@pytest.mark.parametrize("path", SHIPPED, ids=[path.stem for path in SHIPPED])
def test_made_small_it_is_of_the_same_kind(path: Path, tmp_path: Path) -> None:
    whole, small = load_config(str(path)), shrunk(path, tmp_path)
    for key in ("name", "schedule", "placement", "policies", "prompts", "render"):
        assert getattr(small, key) == getattr(whole, key)
    assert small.plays_in_turn == whole.plays_in_turn
    assert small.learner.lora == whole.learner.lora
    assert small.learner.zero_stage == whole.learner.zero_stage
    assert small.imitation.enabled == whole.imitation.enabled

"""The examples of docs/: cluster files are what Ray's own schema takes, and the game conforms."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from spag_ray.config.loading import load_config
from spag_ray.game import check
from spag_ray.games.of_config import game_of, scenarios_of
from spag_ray.games.registry import load_game

ROOT = Path(__file__).resolve().parents[3]
EXAMPLES = ROOT / "docs" / "examples"


def test_ray_up_takes_the_cluster_file() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    config: dict[str, Any] = yaml.safe_load((EXAMPLES / "ray_up.yaml").read_text())
    validate_config(prepare_config(config))  # as `ray up` fills it in


def test_rays_autoscaler_understands_the_kubernetes_file() -> None:
    from ray.autoscaler._private.kuberay.autoscaling_config import _derive_autoscaling_config_from_ray_cr
    from ray.autoscaler._private.util import validate_config

    resource = yaml.safe_load((EXAMPLES / "kuberay.yaml").read_text())
    config = _derive_autoscaling_config_from_ray_cr(resource)
    validate_config(config)
    gpus = config["available_node_types"]["gpu"]
    assert gpus["resources"]["GPU"] == 8
    assert (gpus["min_workers"], gpus["max_workers"]) == (2, 2)


def test_the_game_of_the_examples_conforms_and_its_configuration_finds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    config = load_config("docs/examples/number_duel.yaml")
    assert check(lambda: load_game(config.game.name)) == []
    game = game_of(config)
    assert game is not None
    trained, held_out = scenarios_of(config, game)
    assert (len(trained), len(held_out)) == (48, 24)
    assert len((EXAMPLES / "number_duel.py").read_text(encoding="utf-8").splitlines()) <= 120

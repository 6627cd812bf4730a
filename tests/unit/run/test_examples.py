"""The cluster examples of docs/ are what Ray's own schema takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

EXAMPLES = Path(__file__).resolve().parents[3] / "docs" / "examples"


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

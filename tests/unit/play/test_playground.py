"""The rate of self-play for each GPU of the engines that play."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from cluster.schedules.playground import Playground
from spag_ray.config.loading import parse_config


def rate(num_engines: int, **config: Any) -> float | None:
    """Of 1,200 tokens in 2 s."""
    parts: Any = dict.fromkeys(Playground.__dataclass_fields__)
    parts["config"] = parse_config(config)
    parts["fleet"] = SimpleNamespace(roster=SimpleNamespace(up=lambda: [None] * num_engines))
    return Playground(**parts).tokens_per_s_per_gpu(1200, 2.0)


@pytest.mark.parametrize(
    ("config", "num_engines", "expected"),
    [
        ({"engine": {"num_gpus": 1}}, 2, 300.0),
        ({"engine": {"num_gpus": 4, "tensor_parallel_size": 4}}, 1, 150.0),
        ({"engine": {"num_gpus": 0.5}}, 1, 1200.0),
        ({"engine": {"num_gpus": 0.5}, "placement": "colocated"}, 1, 600.0),
        ({"engine": {"num_gpus": 0}}, 2, None),
        ({"engine": {"num_gpus": 1}}, 0, None),
    ],
)
def test_the_rate_is_divided_by_the_gpus_that_play(
    config: dict[str, Any], num_engines: int, expected: float | None
) -> None:
    assert rate(num_engines, **config) == expected

"""`engine.num_engines` as a range."""

from typing import Any

import pytest

from spag_ray.config.loading import parse_config
from spag_ray.errors import ConfigError


def test_a_number_stays_a_number_and_a_range_starts_with_its_least() -> None:
    assert parse_config({"engine": {"num_engines": 3}}).engine.min_engines == 3
    config = parse_config({"engine": {"num_engines": {"min": 2, "max": 16}}})
    assert config.engine.min_engines == 2
    assert parse_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"engine": {"num_engines": {"min": 3, "max": 2}}}, "min is 3, but max is 2"),
        ({"engine": {"num_engines": {"min": 0, "max": 2}}}, "min"),
        ({"engine": {"num_engines": {"max": 2}}}, "min"),
        ({"engine": {"num_engines": 0}}, "num_engines"),
        ({"engine": {"num_engines": {"min": 1, "max": 2}}, "placement": "colocated"}, "share its devices"),
    ],
)
def test_what_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_config(changes)

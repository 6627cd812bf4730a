"""Tests of seat_models: a run whose two policies start with models of their own."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.checks.preflight import check_seat_models
from cluster.schedules.tournament import entrants_of_run
from cluster.serve.opponents import opponents_of_run
from spag_ray.config.files import named_paths
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, ModelError
from spag_ray.game.rules import Role


def config_of(model: Path, **seats: Path) -> RunConfig:
    named = {role: str(path) for role, path in seats.items()}
    return parse_config({"model": str(model), "policies": "separate", "seat_models": named})


def changed(source: Path, target: Path, file: str, **values: Any) -> Path:
    """A copy of a model folder in which a JSON file has other values."""
    shutil.copytree(source, target)
    before = json.loads((target / file).read_text())
    (target / file).write_text(json.dumps({**before, **values}))
    return target


def test_a_seat_without_a_model_of_its_own_starts_with_model(tiny_model: Path, other_tiny_model: Path) -> None:
    config = config_of(tiny_model, defender=other_tiny_model)
    assert [config.model_of(role) for role in Role] == [str(tiny_model), str(other_tiny_model)]
    assert named_paths(config)["seat_models.defender"] == str(other_tiny_model), "it is sent with a job"
    assert parse_config(config.model_dump(mode="json")) == config


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"policies": "shared", "seat_models": {"attacker": "a"}}, "set policies: separate"),
        ({"policies": "separate", "seat_models": {"judge": "a"}}, "seat_models"),
    ],
)
def test_seats_that_a_run_does_not_have_are_refused(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        parse_config(settings)


def test_a_model_of_the_same_shape_and_tokenizer_fits(tiny_model: Path, other_tiny_model: Path, tmp_path: Path) -> None:
    written_by_another = changed(other_tiny_model, tmp_path / "a", "config.json", transformers_version="4.30.0")
    check_seat_models(config_of(tiny_model, attacker=other_tiny_model, defender=written_by_another), str(tiny_model))


def test_other_models_are_refused(tiny_model: Path, tmp_path: Path) -> None:
    other = changed(tiny_model, tmp_path / "other", "config.json", rms_norm_eps=0.5)
    with pytest.raises(ConfigError, match=r"seat_models\.attacker: rms_norm_eps in .* is 0.5, but"):
        check_seat_models(config_of(tiny_model, attacker=other), str(tiny_model))
    other = changed(tiny_model, tmp_path / "template", "tokenizer_config.json", chat_template="{{ messages }}")
    (other / "chat_template.jinja").unlink(missing_ok=True)
    with pytest.raises(ConfigError, match=r"seat_models\.defender: .* has another tokenizer or chat template"):
        check_seat_models(config_of(tiny_model, defender=other), str(tiny_model))
    with pytest.raises(ModelError, match="no such model folder"):
        check_seat_models(config_of(tiny_model, defender=tmp_path / "missing"), str(tiny_model))


def test_base_is_what_each_seat_started_with(tiny_model: Path, other_tiny_model: Path, tmp_path: Path) -> None:
    for seat in Role:
        shutil.copytree(tiny_model, tmp_path / "models" / f"spag-1-{seat}")
    config = config_of(tiny_model, defender=other_tiny_model)
    base = entrants_of_run(tmp_path, config)[0]
    assert [seat.folder for seat in base.in_seats] == [str(tiny_model), str(other_tiny_model)]
    found = opponents_of_run(tmp_path, config)
    bases = {name: (found[name].folder, found[name].seats) for name in found if name.startswith("base")}
    assert bases == {
        "base-attacker": (str(tiny_model), (Role.ATTACKER,)),
        "base-defender": (str(other_tiny_model), (Role.DEFENDER,)),
    }

"""Tests of seat_models: a run whose two policies start with models of their own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cluster.checks import preflight
from cluster.checks.cluster_checks import read_by_actors
from cluster.checks.known_imports import mark_of
from cluster.checks.preflight import check_seat_models
from cluster.commands.evaluate import for_tasks
from cluster.commands.learn import for_rows
from cluster.run import parts
from cluster.runtime.run_folder import make_run_folder
from cluster.schedules.tournament import entrants_of_run
from cluster.serve.opponents import opponents_of_run
from spag_ray.config.loading import named_paths, parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError, ModelError
from spag_ray.game.rules import Role
from spag_ray.results.model_card import BaseModel, write_cards


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


def test_an_old_form_of_config_json_has_the_same_shape(tiny_model: Path, tmp_path: Path) -> None:
    """Before transformers 5 the base of rotary angles had a key of its own."""
    old = shutil.copytree(tiny_model, tmp_path / "old")
    settings = json.loads((old / "config.json").read_text())
    rope = settings.pop("rope_parameters")
    (old / "config.json").write_text(json.dumps({**settings, "rope_theta": rope["rope_theta"], "pad_token_id": 3}))
    check_seat_models(config_of(tiny_model, attacker=old), str(tiny_model))


def test_a_tokenizer_with_the_same_words_and_other_rules_is_refused(tiny_model: Path, tmp_path: Path) -> None:
    rules = {"type": "Sequence", "normalizers": [{"type": "Lowercase"}]}
    other = changed(tiny_model, tmp_path / "other", "tokenizer.json", normalizer=rules)
    with pytest.raises(ConfigError, match="has another tokenizer"):
        check_seat_models(config_of(tiny_model, attacker=other), str(tiny_model))


def test_the_checks_of_a_run_look_at_them(tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = changed(tiny_model, tmp_path / "other", "config.json", rms_norm_eps=0.5)
    config = config_of(tiny_model, attacker=other)
    for name in ("check_words", "check_games", "check_rows"):
        monkeypatch.setattr(preflight, name, lambda *_: None)
    with pytest.raises(ConfigError, match=r"seat_models\.attacker: rms_norm_eps"):
        preflight.check_run(config, str(tiny_model), {}, {}, [])
    assert mark_of(config, str(tiny_model)) is None, "a change of their files is noticed"
    assert mark_of(parse_config({"model": str(tiny_model)}), str(tiny_model)) is not None
    assert str(other) in read_by_actors(config, str(tiny_model)), "every node tries to read it"


@pytest.mark.parametrize("command", [for_rows, for_tasks])
def test_policies_start_with_them_but_not_where_one_plays_both_seats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: Callable[[RunConfig], RunConfig]
) -> None:
    config = parse_config({"model": "/m/base", "policies": "separate", "seat_models": {"attacker": "/m/other"}})
    started: list[tuple[str, str]] = []

    def made(name: str, *_: object, model: str, **__: object) -> SimpleNamespace:
        started.append((name, model))
        return SimpleNamespace()

    monkeypatch.setattr(parts, "LearningPolicy", made)

    def start(config: RunConfig, models: dict[Role, str]) -> None:
        built: Any = SimpleNamespace(
            config=config, recorder=None, reservation=None, status=SimpleNamespace(waits_for=None)
        )
        lease: Any = SimpleNamespace(folder=tmp_path)
        probe: Any = None
        parts.RunParts._learn(built, lease, models, probe)

    start(config, {Role.ATTACKER: "/m/other", Role.DEFENDER: "/m/base"})
    assert started == [("attacker", "/m/other"), ("defender", "/m/base")]
    started.clear()
    one = command(config)
    start(one, dict.fromkeys(Role, "/m/base"))
    assert started == [("policy", "/m/base")]
    assert parse_config(one.model_dump(mode="json")) == one, "its run folder can be read"


def test_cards_name_what_each_seat_started_with(tmp_path: Path) -> None:
    run = make_run_folder(
        tmp_path / "run",
        parse_config({"policies": "separate", "seat_models": {"attacker": "/elsewhere/mine"}, "model": "/m/base"}),
    )
    for seat in Role:
        (run / "models" / f"spag-1-{seat}").mkdir(parents=True)
        (run / "models" / f"spag-1-{seat}" / "config.json").write_text("{}")
    base, mine = BaseModel("base", None, "apache-2.0"), BaseModel("mine", None, "cc-by-nc-4.0")
    attacker, defender = (path.read_text() for path in write_cards(run, base, of_seats={"attacker": mine}))
    assert "license: cc-by-nc-4.0" in attacker
    assert "license: apache-2.0" in defender
    assert "| `seat_models` | attacker: mine |" in attacker
    assert "/elsewhere" not in attacker + defender


def test_base_is_what_each_seat_started_with(tiny_model: Path, other_tiny_model: Path, tmp_path: Path) -> None:
    for seat in Role:
        shutil.copytree(tiny_model, tmp_path / "models" / f"spag-1-{seat}")
    config = config_of(tiny_model, defender=other_tiny_model)
    base = entrants_of_run(tmp_path, config)[0]
    assert [seat.folder for seat in base.in_seats] == [str(tiny_model), str(other_tiny_model)]
    gone = config_of(tmp_path / "gone", defender=other_tiny_model)
    assert "base-defender" in opponents_of_run(tmp_path, gone), "the other one is here"
    found = opponents_of_run(tmp_path, config)
    bases = {name: (found[name].folder, found[name].seats) for name in found if name.startswith("base")}
    assert bases == {
        "base-attacker": (str(tiny_model), (Role.ATTACKER,)),
        "base-defender": (str(other_tiny_model), (Role.DEFENDER,)),
    }

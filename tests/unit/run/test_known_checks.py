"""Checks of a run that found nothing are not made again, until something that they read changes."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.checks import preflight
from cluster.checks.known_checks import mark_of
from cluster.checks.known_imports import MAX_CHECKS, KnownImports
from cluster.checks.preflight import check_with_imports
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.config.shipped import find_config
from spag_ray.errors import ConfigError


@pytest.fixture
def model(tmp_path: Path, tiny_model: Path) -> Path:
    return Path(shutil.copytree(tiny_model, tmp_path / "model"))


def of(model: Path, *others: Any, **settings: Any) -> str | None:
    return mark_of(parse_config(settings), str(model), *(others or (["river"], [])))


def test_whatever_the_checks_read_is_in_the_mark(model: Path, tmp_path: Path) -> None:
    own = tmp_path / "own.yaml"
    shutil.copy(find_config("chat", "prompts"), own)
    games = tmp_path / "games.json"
    games.write_text("[]")
    settings: dict[str, Any] = {"prompts": str(own), "imitation": {"source": str(games)}}
    marks = [of(model, **settings)]
    assert of(model, **settings) == marks[0]
    marks.append(of(model, ["river", "sea"], [], **settings))
    marks.append(of(model, **settings, engine={"max_model_len": 512}))
    with own.open("a") as file:
        file.write("# another\n")
    marks.append(of(model, **settings))
    games.write_text("[ ]")
    marks.append(of(model, **settings))
    os.utime(model / "config.json", ns=(1, 1))
    marks.append(of(model, **settings))
    (model / "additional_chat_templates").mkdir()
    (model / "additional_chat_templates" / "tools.jinja").write_text("{{ other }}")
    marks.append(of(model, **settings))
    (model / "lost.bin").symlink_to(tmp_path / "nowhere")  # as in a folder that was copied in part
    marks.append(of(model, **settings))
    assert len(set(marks)) == len(marks)
    assert None not in marks


@pytest.mark.parametrize(
    "settings",
    [
        {"game": {"name": "own.py:Mine"}},
        {"game": {"name": "textarena", "env": "TicTacToe-v0"}, "imitation": {"enabled": False}},
        {"evaluation": {"tasks": ["piqa"]}},
        {"objective": {"information_gain": 0.5, "listener": "models/other"}},
        {"evaluation": {"tasks": ["spag_reasoning"], "include_path": "."}},
    ],
)
def test_what_may_change_without_a_trace_is_checked_every_time(settings: dict[str, Any], model: Path) -> None:
    assert of(model, **settings) is None
    assert of(model, evaluation={"tasks": ["spag_reasoning"]}) is not None


def test_only_a_check_that_found_nothing_is_left_out_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAG_RAY_CACHE", str(tmp_path))
    monkeypatch.setattr("cluster.checks.imports.needs_of", lambda *_: ())
    made: list[str] = []

    def refuses(*_: object, **__: object) -> None:
        made.append("refused")
        raise ConfigError("too long")

    config: RunConfig = parse_config({})
    monkeypatch.setattr(preflight, "in_a_process", refuses)
    for _ in range(2):
        with pytest.raises(ConfigError, match="too long"):
            check_with_imports(config, print, "check:1")
    monkeypatch.setattr(preflight, "in_a_process", lambda *_, **__: made.append("passed"))
    for mark in ("check:1", "check:1", "check:2", None, None):
        check_with_imports(config, print, mark)
    assert made == ["refused", "refused", "passed", "passed", "passed", "passed"]


def test_the_oldest_are_forgotten_and_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAG_RAY_CACHE", str(tmp_path))
    known = KnownImports({})
    known.add(["vllm"])
    for number in range(MAX_CHECKS + 2):
        known.add([f"check:{number}"])
    assert "vllm" in known
    assert ["check:1" in known, "check:2" in known, f"check:{MAX_CHECKS + 1}" in known] == [False, True, True]

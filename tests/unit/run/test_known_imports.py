"""What was imported once is not imported again, until what is installed changes; checks of a run that found nothing are
not made again, until something that they read changes."""

import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from cluster.checks import imports, preflight
from cluster.checks.imports import Need, check_imports
from cluster.checks.known_imports import FILE, MAX_CHECKS, MAX_PLACES, KnownImports, mark_of
from cluster.checks.preflight import check_with_imports
from spag_ray.config.loading import find_config, parse_config
from spag_ray.errors import ConfigError

CONFIG = parse_config({})


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of sys.path with the package `counted`, which writes a line to `count` when it is imported."""
    folder = tmp_path / "packages"
    (folder / "counted").mkdir(parents=True)
    line = f"with open({str(tmp_path / 'count')!r}, 'a') as file: file.write('.')\n"
    (folder / "counted" / "__init__.py").write_text(line)
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("SPAG_RAY_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(imports, "needs_of", lambda *_: (Need("counted", "engines", "install it"),))
    return folder


def count(packages: Path) -> int:
    return len((packages.parent / "count").read_text())


def test_a_second_start_does_not_import_again(packages: Path) -> None:
    check_imports(CONFIG)
    check_imports(CONFIG)
    assert count(packages) == 1
    (packages.parent / "runs").mkdir()  # not a package
    (packages / "notes.txt").touch()
    check_imports(CONFIG)
    assert count(packages) == 1


def test_it_does_after_an_installation_reboot_or_new_variable(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_imports(CONFIG)
    (packages / "other-1.0.dist-info").mkdir()
    check_imports(CONFIG)
    assert count(packages) == 2
    os.utime(packages / "counted", ns=(1, 1))
    check_imports(CONFIG)
    assert count(packages) == 3
    monkeypatch.setenv("LD_LIBRARY_PATH", "/elsewhere")
    check_imports(CONFIG)
    assert count(packages) == 4
    check_imports(parse_config({"engine": {"env": {"ANY": "value"}}}))
    assert count(packages) == 5
    monkeypatch.setattr("cluster.checks.known_imports._boot", lambda: "the next one")
    check_imports(CONFIG)
    assert count(packages) == 6


def test_a_fault_and_an_import_over_its_time_are_not_kept(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages / "counted" / "__init__.py").write_text("1 / 0\n")
    for _ in range(2):
        with pytest.raises(ConfigError, match="counted cannot be imported"):
            check_imports(CONFIG)
    (packages / "counted" / "__init__.py").write_text("import time; time.sleep(60)\n")
    monkeypatch.setattr(imports, "IMPORT_WITHIN_S", 0.5)
    check_imports(CONFIG)
    assert "counted" not in KnownImports({})


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', "\0", '{"PLACE": [1, {}]}', "[" * 100_000])
def test_a_damaged_file_is_as_good_as_none(packages: Path, content: str) -> None:
    file = packages.parent / "cache" / FILE
    file.parent.mkdir()
    file.write_text(content.replace("PLACE", KnownImports({})._place))
    check_imports(CONFIG)
    check_imports(CONFIG)
    assert count(packages) == 1


def test_only_the_latest_are_kept_and_no_secret(packages: Path) -> None:
    for number in range(MAX_PLACES + 2):
        KnownImports({"TOKEN": f"secret-{number}"}).add(["counted"])
    assert "counted" not in KnownImports({"TOKEN": "secret-1"})
    assert "counted" in KnownImports({"TOKEN": "secret-2"})
    assert "secret" not in (packages.parent / "cache" / FILE).read_text()


def test_a_cache_folder_that_cannot_be_written_is_no_error(packages: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (packages.parent / "file").touch()
    monkeypatch.setenv("SPAG_RAY_CACHE", str(packages.parent / "file" / "below"))
    check_imports(CONFIG)
    check_imports(CONFIG)
    assert count(packages) == 2


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


def test_only_a_check_that_found_nothing_is_left_out_the_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SPAG_RAY_CACHE", str(tmp_path))
    monkeypatch.setattr("cluster.checks.imports.needs_of", lambda *_: ())
    made: list[str] = []

    def refuses(*_: object, **__: object) -> None:
        made.append("refused")
        raise ConfigError("too long")

    monkeypatch.setattr(preflight, "in_a_process", refuses)
    for _ in range(2):
        with pytest.raises(ConfigError, match="too long"):
            check_with_imports(CONFIG, print, "check:1")
    monkeypatch.setattr(preflight, "in_a_process", lambda *_, **__: made.append("passed"))
    for mark in ("check:1", "check:1", "check:2", None, None):
        check_with_imports(CONFIG, print, mark)
    assert made == ["refused", "refused", "passed", "passed", "passed", "passed"]


def test_the_oldest_are_forgotten_and_no_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPAG_RAY_CACHE", str(tmp_path))
    known = KnownImports({})
    known.add(["vllm"])
    for number in range(MAX_CHECKS + 2):
        known.add([f"check:{number}"])
    assert "vllm" in known
    assert ["check:1" in known, "check:2" in known, f"check:{MAX_CHECKS + 1}" in known] == [False, True, True]

"""What was imported once is not imported again, until what is installed changes."""

import os
from pathlib import Path

import pytest

from cluster.checks import imports
from cluster.checks.imports import Need, check_imports
from cluster.checks.known_imports import FILE, MAX_PLACES, KnownImports
from spag_ray.config.loading import parse_config
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


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', "\0"])
def test_a_damaged_file_is_as_good_as_none(packages: Path, content: str) -> None:
    file = packages.parent / "cache" / FILE
    file.parent.mkdir()
    file.write_text(content)
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

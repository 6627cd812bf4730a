"""`make bundle` and its install.sh, with a lock of two small packages in place of the real one, and no index."""

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from spag_ray import __version__

ROOT = Path(__file__).resolve().parents[3]
SCRIPTS = ROOT / "requirements" / "offline"


def made_wheel(folder: Path, name: str) -> None:
    """A wheel with one module."""
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as file:
        file.writestr(f"{name}.py", "here = True\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")


def script(path: Path, *arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [str(path), *map(str, arguments)]
    clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "PIP_"))}
    return subprocess.run(
        command, env=clean | environment, cwd=path.parent, capture_output=True, text=True, timeout=200
    )


@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bundle")
    shelf = folder / "shelf"
    shelf.mkdir()
    for name in ("torch", "other"):
        made_wheel(shelf, name)
    (folder / "lock.txt").write_text("# packages\ntorch==1.0\nother==1.0\n")
    # No index, and spag-ray is built with the setuptools that is installed here (pip reads "0" as: no isolation).
    pip = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(shelf), "PIP_NO_BUILD_ISOLATION": "0"}
    done = script(SCRIPTS / "bundle.sh", folder / "lock.txt", folder / "out", sys.executable, **pip)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out"


def test_a_machine_without_a_network_installs_the_wheels(bundle: Path, tmp_path: Path) -> None:
    names = sorted(path.name.split("-")[0] for path in (bundle / "wheels").iterdir())
    assert names == ["other", "spag_ray", "torch"]
    moved = shutil.copytree(bundle, tmp_path / "copied")
    environment = tmp_path / "environment"
    done = script(moved / "install.sh", environment, PYTHON=sys.executable, PIP_NO_INDEX="1")
    assert "No module named 'typer'" in done.stderr, "all went well until the command, whose packages the lock left out"
    listed = subprocess.run([environment / "bin" / "pip", "list"], capture_output=True, text=True, check=True).stdout
    assert {line.split()[0]: line.split()[1] for line in listed.splitlines()[2:]}.items() >= {
        "other": "1.0",
        "spag-ray": __version__,
        "torch": "1.0",
    }.items()


def test_damaged_wheels_and_another_python_are_refused_in_one_line(bundle: Path, tmp_path: Path) -> None:
    moved = shutil.copytree(bundle, tmp_path / "copied")
    missing = script(moved / "install.sh", tmp_path / "env", PYTHON="/nowhere/python3")
    assert (missing.returncode, missing.stderr.count("\n")) == (2, 1)
    assert "no /nowhere/python3 here; name Python 3." in missing.stderr
    (moved / "python-version").write_text("3.7\n")
    other = script(moved / "install.sh", tmp_path / "env", PYTHON=sys.executable)
    assert other.returncode == 2
    assert "these wheels are for Python 3.7" in other.stderr
    shutil.copy(bundle / "python-version", moved)
    with next((moved / "wheels").glob("other*")).open("ab") as file:
        file.write(b"x")
    damaged = script(moved / "install.sh", tmp_path / "env", PYTHON=sys.executable)
    assert damaged.returncode == 2
    assert "copy the folder again" in damaged.stderr
    assert not (tmp_path / "env").exists()


@pytest.mark.parametrize(("pin", "falls_back"), [("1.0", False), ("1.0+cpu", True)])
def test_a_build_for_gpus_that_is_not_there_is_not_replaced_by_cpus(pin: str, falls_back: bool, tmp_path: Path) -> None:
    """A download that breaks off: torch 2.13.0+cpu is a 2.13.0 to pip."""
    (tmp_path / "lock.txt").write_text(f"torch=={pin}\n")
    python = tmp_path / "python"
    python.write_text(f'#!/bin/sh\necho "$@" >>{tmp_path}/asked\nexit 1\n')
    python.chmod(0o755)
    assert script(SCRIPTS / "bundle.sh", tmp_path / "lock.txt", tmp_path / "out", python).returncode == 2
    assert ("--index-url" in (tmp_path / "asked").read_text()) == falls_back


@pytest.mark.parametrize("name", ["Makefile", "Dockerfile"])
def test_pytorchs_own_index_is_for_builds_for_cpus_alone(name: str) -> None:
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    (at,) = [place for place, line in enumerate(lines) if "--index-url" in line]
    assert "+cpu" in lines[at - 1] + lines[at]

"""The wheel, installed in an environment of its own and used outside the checkout: commands find what they need."""

import email
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest
import typer.main

from cluster.cli import app
from spag_ray import __version__
from spag_ray.config.loading import to_yaml
from spag_ray.errors import extra as remedy
from tests.support.bare_environment import of_extra, python_with
from tests.support.old_run_folders import placed
from tests.support.runs import tiny_run

ROOT = Path(__file__).resolve().parents[3]
FLOORS = ("spag_ray", "actors", "learners", "cluster")
SOURCES = (*FLOORS, "configs", "setup.py", "pyproject.toml", "README.md", "LICENSE")
ALL_PACKAGES = {"PYTHONPATH": sysconfig.get_path("purelib")}
PASS = ("words", "files", "imports")
HEAVY = ("torch", "transformers", "vllm", "deepspeed")


@dataclass
class Installed:
    """The wheel in an environment that has what the extra `client` requires. With ALL_PACKAGES, it also has what is
    installed here, for commands that need more. Commands run in `folder`."""

    program: Path
    folder: Path

    def run(self, *arguments: str, code: int = 0, **environment: str) -> str:
        """What it prints, on both streams."""
        clean = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "VIRTUAL_ENV"))}
        done = subprocess.run(
            [str(self.program), *arguments],
            cwd=self.folder,
            env={**clean, **environment, "COLUMNS": "200"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=120,
        )
        assert done.returncode == code, done.stdout
        assert "Traceback" not in done.stdout
        return done.stdout


def pip(*arguments: str) -> None:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--no-input", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=ROOT)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built from a copy, so that the checkout gets no build/ folder."""
    folder = tmp_path_factory.mktemp("source")
    for name in SOURCES:
        if (ROOT / name).is_dir():
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copyfile(ROOT / name, folder / name)
    pip("wheel", "--no-deps", "--no-index", "--no-build-isolation", "--wheel-dir", str(folder / "dist"), str(folder))
    [built] = (folder / "dist").glob("*.whl")
    return built


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("installed")
    python = python_with(required(wheel, "client"), folder / "environment")
    pip("--python", str(python), "install", "--no-deps", "--no-index", str(wheel))
    (folder / "work").mkdir()
    return Installed(python.with_name("spag-ray"), folder / "work")


def required(wheel: Path, extra: str) -> list[str]:
    """What the wheel requires with an extra."""
    with zipfile.ZipFile(wheel) as archive:
        [name] = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(archive.read(name))
    assert extra in metadata.get_all("Provides-Extra", [])
    return of_extra(metadata.get_all("Requires-Dist", []), extra)


def test_the_wheel_holds_every_file_of_the_packages_and_every_config(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    listed = subprocess.run(
        ["git", "ls-files", *FLOORS, "configs"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    wanted = {name.replace("configs/", "spag_ray/_configs/", 1) for name in listed.stdout.splitlines()}
    assert len(wanted) > 250
    assert wanted - held == set()
    extra = {name for name in held - wanted if not (ROOT / name).is_file()}
    assert extra == set()


@pytest.mark.parametrize("name", ["cpu", "gpu", "client", "data", "eval", "textarena"])
def test_a_remedy_names_the_wheel_and_an_extra_that_it_has(wheel: Path, name: str) -> None:
    assert f"'{wheel.name}[{name}]'" in remedy(name)
    assert required(wheel, name)


def test_every_command_has_help_without_torch(installed: Installed) -> None:
    assert "quickstart" in installed.run("--help")
    assert installed.run("--version") == f"spag-ray {__version__}\n"
    program = installed.program.with_name("every-help")
    names = list(typer.main.get_command(app).commands)  # type: ignore[attr-defined]
    assert len(names) > 17
    program.write_text(
        f"#!{installed.program.with_name('python')}\n"
        "import sys\nfrom cluster.cli import app, run_guarded\nimport spag_ray\n"
        f"for name in {[[name] for name in names] + [['words', 'check'], ['game', 'check'], ['game', 'new']]}:\n"
        "    assert run_guarded(lambda **options: app([*name, '--help'], **options)) == 0, name\n"
        f"print('imported', [name for name in {HEAVY} if name in sys.modules], spag_ray.__file__)\n"
        "import importlib.util as util\n"
        f"print('found', [name for name in {HEAVY} if util.find_spec(name)])\n"
    )
    program.chmod(0o755)
    said = Installed(program, installed.folder).run()
    assert said.count("Usage:") == len(names) + 3
    assert "imported []" in said
    assert "found []" in said
    assert str(installed.program.parents[1]) in said.splitlines()[-2], "the package is that of the wheel"


def test_a_client_watches_reports_exports_and_submits_without_torch(installed: Installed, tmp_path: Path) -> None:
    run = str(placed("rounds", tmp_path))
    assert "spag-2" in installed.run("watch", run, "--once")
    assert "32 games" in installed.run("report", run)
    assert "32 games" in installed.run("export", run, "--format", "jsonl")
    listed = installed.run(
        *("submit", "kuhn", "--address", "http://127.0.0.1:9", "--run-dir", "/nowhere/run", "--dry-run")
    )
    assert "spag_ray/_configs/kuhn.yaml" in listed
    assert "would send" in listed
    assert "http://127.0.0.1:9" in installed.run("runs", "--address", "http://127.0.0.1:9", code=2)
    assert "torch is not installed" in installed.run("listen", "x", "--games", "games.json", code=2)


def test_commands_without_engines_work_outside_a_checkout(installed: Installed, tiny_model: Path, words: Path) -> None:
    """Configurations, prompts and decks are found inside the package."""

    def run(*arguments: str, code: int = 0) -> str:
        return installed.run(*arguments, code=code, **ALL_PACKAGES)

    (installed.folder / "tiny.yaml").write_text(to_yaml(tiny_run(tiny_model, words)))
    model = ("-o", f"model={tiny_model}")
    for name in ("quickstart", "kuhn", "configs/cpu_proof.yaml"):
        assert "plan of" in run("train", name, "--dry-run", *model)
    assert "plan of" in run("train", "llama2_7b_8gpu", "--dry-run")
    assert "plan of" in run("quickstart", "--dry-run", *model)
    found = run("doctor", "tiny.yaml", "-o", "cluster.object_store_gib=1e6", code=2)  # it ends there, without Ray
    assert [line.split()[:2] for line in found.splitlines()[:3]] == [["pass", name] for name in PASS]
    assert "50 words in list.txt" in run("words", "--top", "50", "--out", "list.txt")
    assert "no faults" in run("words", "check", "everyday")
    assert "MyGame, a game that plays" in run("game", "new", "my_game")
    assert "no fault found" in run("game", "check", "my_game.py:MyGame", "--games", "6")
    turns = [{"role": "attacker", "content": "It purrs."}, {"role": "defender", "content": "A cat sat."}]
    (installed.folder / "games.json").write_text(json.dumps([{"history": turns, "target_word": "cat", "max_turns": 3}]))
    assert "1 training rows from 1 games" in run("reward", "games.json", "rows.json")
    assert "dashboard in d.json" in run("dashboard", "--out", "d.json")

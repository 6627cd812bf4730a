"""What the image is made of, without building it; tests/integration/test_container.py runs the Dockerfile's steps."""

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.dockerfile import sent_files, stages_of
from tests.support.not_here import not_here

ROOT = Path(__file__).resolve().parents[3]
FILE, IGNORE = ROOT / "Dockerfile", ROOT / ".dockerignore"
FLOORS = ("spag_ray", "actors", "learners", "cluster")


def listed(*under: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *under]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()


@pytest.mark.parametrize(
    ("program", "file"),
    [
        ("hadolint", "Dockerfile"),
        ("shellcheck", "docs/examples/slurm.sh"),
        ("shellcheck", "requirements/offline/bundle.sh"),
        ("shellcheck", "requirements/offline/install.sh"),
    ],
    ids=lambda value: value,
)
def test_linters_find_nothing(program: str, file: str) -> None:
    found = shutil.which(program, path=str(Path(sys.executable).parent)) or shutil.which(program)
    if found is None:
        not_here(f"{program} is not installed (requirements/ci.txt)")
    done = subprocess.run([found, file], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_packages_are_a_layer_that_no_source_file_invalidates() -> None:
    lock, *others = stages_of(FILE)
    assert lock.of("COPY") == ["requirements/${LOCK}.txt /opt/lock.txt"]
    assert "LOCK=cpu" in lock.of("ARG")
    for name in ("cpu", "gpu"):
        lines = (ROOT / "requirements" / f"{name}.txt").read_text().splitlines()
        assert len([line for line in lines if line.startswith("torch==")]) == 1
    assert all(stage.base == "lock" for stage in others)
    assert others[-1].of("COPY") == ["--from=wheel /wheel /opt/wheel"], "the sources stay in another stage"


def test_the_image_runs_spag_ray_and_not_as_root() -> None:
    last = stages_of(FILE)[-1]
    assert last.of("USER") == ["1000"]
    assert last.of("ENTRYPOINT") == ['["spag-ray"]']
    made = re.search(r"useradd --create-home --uid (\d+)", " ".join(last.of("RUN")))
    assert made is not None
    assert made[1] == "1000"
    for name in ("kuberay.yaml", "kuberay_session.yaml"):
        text = (ROOT / "docs" / "examples" / name).read_text()
        assert text.count("fsGroup: 1000") == 2, "so that this user can write to the volume"


def test_the_build_is_sent_every_file_of_the_wheel_and_little_else() -> None:
    sent = set(sent_files(ROOT, IGNORE, listed()))
    of_wheel = {name for name in listed(*FLOORS, "configs") if (ROOT / name).is_file()}
    assert len(of_wheel) > 250
    assert of_wheel - sent == set()
    others = {"LICENSE", "README.md", "pyproject.toml", "setup.py"}
    assert {name for name in sent - of_wheel if not name.startswith("requirements/")} == others
    caches = ["spag_ray/__pycache__/errors.cpython-311.pyc", "cluster/run/__pycache__/x", ".venv/bin/python"]
    assert sent_files(ROOT, IGNORE, [*caches, "runs/one/config.yaml"]) == []


def test_the_last_matching_pattern_decides(tmp_path: Path) -> None:
    names = ["a.txt", "kept/a.txt", "kept/b.log", "deep/kept/c.log"]
    for name in names:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "ignore").write_text("# everything but one folder\n*\n!kept\n**/*.log\n")
    assert sent_files(tmp_path, tmp_path / "ignore", names) == ["kept/a.txt"]


def test_steps_are_read_over_line_breaks(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    file.write_text("# a comment\nFROM debian AS one\nRUN a \\\n    && b\n\nFROM one\nUSER 7\n")
    first, second = stages_of(file)
    assert (first.base, first.name, first.of("RUN")) == ("debian", "one", ["a && b"])
    assert (second.base, second.name, second.of("USER")) == ("one", "", ["7"])

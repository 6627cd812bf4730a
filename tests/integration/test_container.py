"""The steps of the Dockerfile, run as a script in a folder instead of an image: no container engine is needed.

Everything is done for real but three things. apt-get is replaced by nothing. The environment sees the packages that are
installed here, so that pip finds the whole lock installed and fetches nothing. Paths of the image begin with a
temporary folder.
"""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
from dataclasses import dataclass
from pathlib import Path

import pytest

from spag_ray.config.loading import to_yaml
from tests.support.dockerfile import Stage, sent_files, stages_of
from tests.support.runs import tiny_run

pytestmark = pytest.mark.parallel

ROOT = Path(__file__).resolve().parents[2]
PATHS = re.compile(r"(?<![\w.:/])/(opt|src|wheel|tmp|home|var)\b")

SITE = f"lib/python{sys.version_info.major}.{sys.version_info.minor}/site-packages"
STAND_INS = {
    "apt-get": "exit 0",
    # The environment that `python3 -m venv FOLDER` makes has no setuptools of its own, and sees this one's packages.
    "python3": f'{sys.executable} "$@" && "$3/bin/pip" uninstall -q -y setuptools && '
    f'echo {sysconfig.get_path("purelib")} >"$3/{SITE}/here.pth"',
    "useradd": '/usr/sbin/useradd --prefix "$IMAGE" "$@"' if os.geteuid() == 0 else 'mkdir -p "$IMAGE/home/spag"',
}


@dataclass
class Image:
    """A folder in place of an image's file system, and the environment of its commands."""

    folder: Path
    environment: dict[str, str]

    def place(self, path: str) -> Path:
        return Path(self.inside(path))

    def inside(self, text: str) -> str:
        return PATHS.sub(lambda found: f"{self.folder}{found[0]}", text)

    def build(self, stages: list[Stage]) -> None:
        """Every step in its order. The stages share the folder: no step may depend on what another stage lacks."""
        shell = ["/bin/bash", "-c"]
        for stage in stages:
            for instruction, arguments in stage.steps:
                if instruction == "SHELL":
                    shell = json.loads(arguments)
                elif instruction in ("ARG", "ENV"):
                    for setting in shlex.split(arguments):
                        name, _, value = setting.partition("=")
                        before = self.environment.get("PATH", "")
                        self.environment[name] = self.inside(value).replace("$PATH", before)
                elif instruction == "COPY":
                    self.copy(shlex.split(arguments))
                elif instruction == "RUN":
                    self.run([*shell, self.inside(arguments)])

    def copy(self, arguments: list[str]) -> None:
        *options, source, target = arguments
        source = re.sub(r"\$\{(\w+)\}", lambda found: self.environment[found[1]], source)
        if options:  # --from: of an earlier stage
            shutil.copytree(self.place(source), self.place(target))
            return
        command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        for name in sent_files(ROOT, ROOT / ".dockerignore", listed.stdout.splitlines()):
            if source == "." or name == source:
                copy = self.place(target) / name if source == "." else self.place(target)
                copy.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(ROOT / name, copy)

    def run(self, command: list[str], code: int = 0) -> str:
        """What a command prints, on both streams."""
        done = subprocess.run(
            command,
            cwd=self.folder / "home",
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=200,
        )
        assert done.returncode == code, f"{command}\n{done.stdout}"
        return done.stdout


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Image:
    folder = tmp_path_factory.mktemp("image")
    for name in ("opt", "tmp", "home", "etc", "stand-ins", "var/lib/apt/lists"):
        (folder / name).mkdir(parents=True)
    (folder / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/bash\n")
    (folder / "etc" / "group").write_text("root:x:0:\n")
    for name, body in STAND_INS.items():
        script = folder / "stand-ins" / name
        script.write_text(f"#!/bin/bash\n{body}\n")
        script.chmod(0o755)
    path = f"{folder}/stand-ins:/usr/local/bin:/usr/bin:/bin"
    built = Image(folder, {"PATH": path, "IMAGE": str(folder), "HOME": str(folder / "home"), "PIP_NO_INDEX": "1"})
    built.build(stages_of(ROOT / "Dockerfile"))
    return built


def test_the_steps_install_the_lock_and_the_wheel_and_leave_no_sources(image: Image) -> None:
    shown = image.run([str(image.place("/opt/spag-ray/bin/pip")), "show", "--files", "spag-ray"])
    assert f"Location: {image.place('/opt/spag-ray')}" in shown
    assert "spag_ray/_configs/quickstart.yaml" in shown
    assert [path.name for path in image.place("/opt/wheel").iterdir()] == ["spag_ray-0.2.0-py3-none-any.whl"]
    assert list(image.place("/tmp").iterdir()) == []
    assert image.place("/home/spag").is_dir()
    if os.geteuid() == 0:
        users = (image.folder / "etc" / "passwd").read_text().splitlines()
        assert [line.split(":")[2] for line in users if line.startswith("spag:")] == ["1000"]


def test_the_entry_point_answers_and_checks_a_configuration(image: Image, tiny_model: Path, words: Path) -> None:
    [entry] = json.loads(stages_of(ROOT / "Dockerfile")[-1].of("ENTRYPOINT")[0])
    program = str(image.place(f"/opt/spag-ray/bin/{entry}"))
    assert "Train language models by adversarial self-play" in image.run([program, "--help"])
    file = image.folder / "tiny.yaml"
    file.write_text(to_yaml(tiny_run(tiny_model, words)))
    said = image.run([program, "doctor", str(file), "-o", "cluster.object_store_gib=1e6"], code=2)  # ends before Ray
    passed = [["pass", name] for name in ("words", "files", "imports", "claims", "model")]
    assert [line.split()[:2] for line in said.splitlines()[:5]] == passed

"""The floors of the house hold: nothing imports from a floor above."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FLOORS = {
    "spag_ray": {"spag_ray"},
    "actors": {"spag_ray", "actors"},
    "learners": {"spag_ray", "learners"},
    "cluster": {"spag_ray", "actors", "learners", "cluster"},
}
ONLY_IN = {"ray": "cluster", "vllm": "actors", "deepspeed": "learners"}
NOT_IN_SPAG_RAY = {"torch", "transformers"}
# Rooms of spag_ray with torch: model families, and channels for weights. Nothing else in spag_ray imports a module of
# theirs that has torch (test_rooms.py, and the test below).
WITH_TORCH = ("spag_ray/families/", "spag_ray/channels/")
# Both halves of vLLM's weight-transfer protocol: actors/ and learners/, which never import each other, share them.
SPEAKS_VLLM = "spag_ray/channels/"
# The names of the channels, which the configuration reads.
WITHOUT_TORCH = "spag_ray.channels.base"
# `python -m spag_ray` hands over to the command line.
EXCEPTION = ("spag_ray/__main__.py", "cluster")
FILES = sorted(path for floor in FLOORS for path in (ROOT / floor).rglob("*.py"))


def imported(source: str) -> set[str]:
    """Top-level names of everything a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def violations(file: str, source: str) -> list[str]:
    floor = file.split("/")[0]
    found = []
    for name in imported(source):
        if name in FLOORS and name not in FLOORS[floor] and (file, name) != EXCEPTION:
            found.append(f"{file} imports {name}, a floor above or beside it")
        if ONLY_IN.get(name, floor) != floor and not (name == "vllm" and file.startswith(SPEAKS_VLLM)):
            found.append(f"{file} imports {name}, which belongs to {ONLY_IN[name]}/")
        if floor == "spag_ray" and name in NOT_IN_SPAG_RAY and not file.startswith(WITH_TORCH):
            found.append(f"{file} imports {name}")
    return found


@pytest.mark.parametrize("path", FILES, ids=[str(path.relative_to(ROOT)) for path in FILES])
def test_no_file_imports_upwards(path: Path) -> None:
    assert violations(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8")) == []


def test_an_upward_import_is_found() -> None:
    assert violations("spag_ray/x.py", "def f():\n    import torch\n    from cluster.run.run import Run\n")
    assert violations("actors/x.py", "import ray")
    assert violations("learners/x.py", "from actors import arena")
    assert violations("learners/x.py", "import vllm")
    assert violations("spag_ray/families/x.py", "from learners import packing")
    assert violations("spag_ray/families/x.py", "import vllm")
    assert violations("spag_ray/channels/x.py", "import ray")
    assert not violations("spag_ray/families/x.py", "import torch")
    assert not violations("spag_ray/channels/x.py", "import torch, vllm")
    assert not violations("cluster/x.py", "import ray\nfrom learners.learner import Learner")


def test_a_configuration_knows_the_channels_without_torch_and_without_vllm() -> None:
    for path in (ROOT / "spag_ray").rglob("*.py"):
        if path.parent.name != "channels":
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("spag_ray.channels"):
                    assert node.module == WITHOUT_TORCH, path
    program = "import sys, spag_ray.config.run; print({'torch', 'vllm', 'ray'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, timeout=120)
    assert done.stdout.strip() == "set()", done.stderr


def test_what_tests_share_is_in_support() -> None:
    """No test module imports another: whose test a failure is would not be seen from its file."""
    files = [path for path in (ROOT / "tests").rglob("*.py") if "golden" not in path.parts]
    assert len(files) > 100
    for path in files:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "tests":
                assert node.module.startswith("tests.support."), f"{path.relative_to(ROOT)} imports {node.module}"

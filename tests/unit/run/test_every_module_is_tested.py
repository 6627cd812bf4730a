"""Every module has a test file of its name, or its folder's `__init__.py` says which test file tests it."""

import ast
import re
from collections.abc import Iterable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FLOORS = ("spag_ray", "actors", "learners", "cluster")
TEST_FILES = {path.name for path in (ROOT / "tests").rglob("test_*.py")}
ROOMS = sorted(path.parent for floor in FLOORS for path in (ROOT / floor).rglob("__init__.py"))


def named_elsewhere(docstring: str) -> dict[str, str]:
    """{module: test file} of the paragraph `Tests of other names: a, b in test_c.py; d in test_e.py.`"""
    _, _, told = docstring.partition("Tests of other names:")
    found: dict[str, str] = {}
    for part in told.split("\n\n")[0].split(";"):
        if match := re.fullmatch(r"\s*([\w,\s]+?)\s+in\s+(test_\w+\.py)\.?\s*", part):
            found |= dict.fromkeys(re.split(r",\s*", match[1]), match[2])
    return found


def faults(modules: Iterable[str], docstring: str, test_files: Iterable[str]) -> list[str]:
    """Modules without a test file, and entries that name a missing module or file."""
    modules, test_files, told = set(modules), set(test_files), named_elsewhere(docstring)
    found = [f"{name} is no module here" for name in told.keys() - modules]
    found += [f"there is no {file}" for file in set(told.values()) - test_files]
    found += [f"{name} has no test_{name}.py" for name in modules - told.keys() if f"test_{name}.py" not in test_files]
    return sorted(found)


@pytest.mark.parametrize("room", ROOMS, ids=[str(room.relative_to(ROOT)) for room in ROOMS])
def test_every_module_is_tested(room: Path) -> None:
    modules = {path.stem for path in room.glob("*.py") if not path.stem.startswith("__")}
    docstring = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    assert faults(modules, docstring, TEST_FILES) == []


def test_what_is_missing_is_found() -> None:
    files = ["test_a.py", "test_x.py"]
    assert faults(["a"], "A room.", files) == []
    assert faults(["a", "b", "c"], "A room.\n\nTests of other names: b, c in test_x.py.", files) == []
    assert faults(["a", "b"], "A room.", files) == ["b has no test_b.py"]
    assert faults(["a", "b"], "Tests of other names: b in test_y.py.", files) == ["there is no test_y.py"]
    assert faults(["a"], "Tests of other names: gone in test_x.py;\nold in test_a.py.", files) == [
        "gone is no module here",
        "old is no module here",
    ]

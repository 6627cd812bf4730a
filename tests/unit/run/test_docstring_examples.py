"""The examples in docstrings are true: every module with a doctest is run here."""

import doctest
import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
FLOORS = ("spag_ray", "actors", "learners", "cluster", "benchmarks")
WITH_EXAMPLES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for floor in FLOORS
    for path in (ROOT / floor).rglob("*.py")
    if ">>> " in path.read_text(encoding="utf-8")
)


@pytest.mark.parametrize("module", WITH_EXAMPLES)
def test_the_examples_of_a_docstring_are_true(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_examples_are_found() -> None:
    assert "spag_ray.games.taboo.referee.disguise" in WITH_EXAMPLES
    assert "cluster.planning.reservation" in WITH_EXAMPLES

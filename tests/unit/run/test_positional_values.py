"""No call passes more values by position than a reader can tell apart."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MOST = 5
ROOMS = ("spag_ray", "actors", "learners", "cluster")
FILES = sorted(path for room in ROOMS for path in (ROOT / room).rglob("*.py"))
# These take any number of values, or pass them on as they are.
TAKE_MANY = {"_TargetLogprobs.apply", "attrgetter", "in_a_process", "table.add_row"}


def long_calls(source: str) -> list[str]:
    """The calls with more than MOST values by position; `*values` counts as one."""
    return [
        f"line {node.lineno}: {ast.unparse(node.func)} gets {len(node.args)} values"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and len(node.args) > MOST and ast.unparse(node.func) not in TAKE_MANY
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_call_passes_more_than_five_values_by_position(path: Path) -> None:
    assert long_calls(path.read_text(encoding="utf-8")) == []


def test_a_call_with_six_is_found() -> None:
    assert long_calls("f(1, 2, 3, 4, *five)\nf(1, g=2)\nattrgetter(1, 2, 3, 4, 5, 6)") == []
    assert long_calls("def g():\n    x.f(1, 2, 3, 4, 5, 6, h=8)") == ["line 2: x.f gets 6 values"]

"""No call passes more values by position than a reader can tell apart."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
MOST = 6
FILES = sorted((ROOT / "cluster").rglob("*.py"))


def long_calls(source: str) -> list[str]:
    """The calls with more than MOST values by position; `*values` counts as one."""
    return [
        f"line {node.lineno}: {ast.unparse(node.func)} gets {len(node.args)} values"
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Call) and len(node.args) > MOST
    ]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_call_passes_more_than_six_values_by_position(path: Path) -> None:
    assert long_calls(path.read_text(encoding="utf-8")) == []


def test_a_call_with_seven_is_found() -> None:
    assert long_calls("f(1, 2, 3, 4, 5, *six)\nf(1, g=2)") == []
    assert long_calls("def g():\n    x.f(1, 2, 3, 4, 5, 6, 7, h=8)") == ["line 2: x.f gets 7 values"]

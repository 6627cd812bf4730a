"""The notebooks in docs/ are stored without outputs: those would be of one machine, and large."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).resolve().parents[3] / "docs").rglob("*.ipynb"))


@pytest.mark.parametrize("path", NOTEBOOKS, ids=[path.name for path in NOTEBOOKS])
def test_a_notebook_has_no_outputs_and_valid_code(path: Path) -> None:
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert len(code) > 5
    for cell in code:
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        compile("".join(cell["source"]), path.name, "exec")


def test_both_notebooks_are_there() -> None:
    assert [path.name for path in NOTEBOOKS] == ["read_a_run.ipynb", "tour.ipynb"]

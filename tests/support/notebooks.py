"""Executes a notebook in a kernel of its own."""

import json
from pathlib import Path

from tests.support.not_here import not_here

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = ROOT / "docs" / "examples"


def executed(path: Path, timeout_s: int = 180) -> str:
    """All outputs of a notebook as JSON. A cell that fails raises nbclient's CellExecutionError."""
    try:
        import nbformat
        from nbclient import NotebookClient
    except ImportError:
        not_here("no nbclient (requirements/ci.txt)")
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    NotebookClient(notebook, timeout=timeout_s, resources={"metadata": {"path": str(ROOT)}}).execute()
    return json.dumps([cell.get("outputs") for cell in notebook.cells])

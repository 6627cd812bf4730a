"""The notebook that reads a finished run is executed as a person would; that of a session: test_cluster.py."""

from pathlib import Path

import pytest

from tests.support.notebooks import NOTEBOOKS, executed
from tests.support.report_runs import make_run


def test_a_run_is_read_by_pandas(
    tiny_model: Path, words: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_run(tmp_path / "run", tiny_model, words)
    monkeypatch.setenv("SPAG_RAY_RUN", str(tmp_path / "run"))
    said = executed(NOTEBOOKS / "read_a_run.ipynb")
    assert "eval-spag-2" in said
    assert "attacker wins" in said
    assert said.count("plotly") >= 2

"""A report of ten thousand games."""

import shutil
import time
from pathlib import Path

import pytest
from rich.console import Console

from cluster.commands.report import decoder
from spag_ray.results.report.page import write_report
from tests.support.report_runs import make_run, play, repeated, write_log


@pytest.fixture(scope="module")
def made(tiny_model: Path, words: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run folder; tests that change it take a copy."""
    folder = tmp_path_factory.mktemp("report") / "one-run"
    make_run(folder, tiny_model, words)
    return folder


def test_ten_thousand_games_take_seconds_and_a_few_megabytes(made: Path, tiny_model: Path, tmp_path: Path) -> None:
    folder = tmp_path / "large"
    shutil.copytree(made, folder)
    shutil.rmtree(folder / "episodes")
    played = play(tiny_model, "spag-1", 60)
    write_log(folder, "spag-1", repeated(played, 10_000))
    began = time.monotonic()
    report = write_report(folder, folder / "report.html", decoder(folder, Console(quiet=True)))
    seconds = time.monotonic() - began
    num_turns = sum(len(episode.turns) for episode in played) * 10_000 // 60
    print(f"\n10,000 games of {num_turns / 10_000:.1f} turns: {seconds:.1f} s, {report.num_bytes / 1e6:.1f} MB")
    assert report.num_on_page == 10_000
    assert seconds < 60
    assert report.num_bytes < 15e6

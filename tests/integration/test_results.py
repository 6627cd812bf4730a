"""docs/results.md and the tables of the appendix against the records that they speak of."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.parallel

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "docs" / "results.md"
TABLES = ROOT / "docs" / "appendix" / "tables.md"
EARLIER = ROOT / "docs" / "appendix" / "earlier_results.md"


@pytest.mark.parametrize(
    ("records", "seeds", "page"),
    [
        ("docs/proof", "1, 2, 3", EARLIER),
        ("docs/proof-everyday", "1, 2", EARLIER),
        ("docs/proof-steady", "4, 5, 6, 7", TABLES),
    ],
)
def test_the_tables_of_the_results_are_those_that_their_records_give(records: str, seeds: str, page: Path) -> None:
    command = [sys.executable, "-m", "benchmarks.proof", "tables", "--out", records]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    assert f"Seeds: {seeds}." in printed
    assert printed in page.read_text(encoding="utf-8"), printed


def test_the_scores_of_the_results_are_the_table_of_the_appendix() -> None:
    (scores,) = [each for each in TABLES.read_text(encoding="utf-8").split("\n\n") if each.startswith("| player |")]
    assert scores in RESULTS.read_text(encoding="utf-8")


def test_the_tables_of_ablations_are_those_that_their_record_gives() -> None:
    command = [sys.executable, "-m", "benchmarks.ablations", "table", "--seed", "7", "--out", "docs/proof-steady"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    assert printed.count("spag-3 |") == 7
    assert printed in TABLES.read_text(encoding="utf-8"), printed


def test_the_tables_of_leduc_poker_are_those_that_their_records_give() -> None:
    command = [sys.executable, "-m", "benchmarks.leduc", "tables", "--out", "docs/leduc"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    assert printed.count("| spag-40 |") == 3
    assert printed in TABLES.read_text(encoding="utf-8"), printed


def test_the_table_of_taught_hints_and_its_headline_are_those_that_their_record_gives(tmp_path: Path) -> None:
    shutil.copy(ROOT / "docs" / "proof-taught" / "2.json", tmp_path)
    command = [sys.executable, "-m", "benchmarks.taught", "tables", "--out", str(tmp_path)]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    assert "| taught | taught | 240 |" in printed
    assert printed in TABLES.read_text(encoding="utf-8"), printed
    assert (tmp_path / "headline.json").read_text() == (ROOT / "docs" / "proof-taught" / "headline.json").read_text()


def test_the_tables_of_kuhn_poker_are_those_that_their_records_give() -> None:
    command = [sys.executable, "-m", "benchmarks.kuhn", "tables", "--out", "docs/kuhn"]
    printed = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()
    assert printed.count("| spag: spag-28 |") == 3
    assert printed in TABLES.read_text(encoding="utf-8"), printed

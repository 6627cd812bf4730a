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


def printed_by(*arguments: str) -> str:
    command = [sys.executable, "-m", *arguments]
    return subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


@pytest.mark.parametrize(
    ("records", "seeds", "page"),
    [
        ("docs/proof", "1, 2, 3", EARLIER),
        ("docs/proof-everyday", "1, 2", EARLIER),
        ("docs/proof-steady", "4, 5, 6, 7", TABLES),
    ],
)
def test_the_tables_of_the_results_are_those_that_their_records_give(records: str, seeds: str, page: Path) -> None:
    printed = printed_by("benchmarks.proof", "tables", "--out", records)
    assert f"Seeds: {seeds}." in printed
    assert printed in page.read_text(encoding="utf-8"), printed


@pytest.mark.parametrize(
    ("arguments", "row", "count"),
    [
        ("benchmarks.ablations table --seed 7 --out docs/proof-steady", "spag-3 |", 7),
        ("benchmarks.leduc tables --out docs/leduc", "| spag-40 |", 3),
        ("benchmarks.kuhn tables --out docs/kuhn", "| spag: spag-28 |", 3),
    ],
    ids=["ablations", "Leduc poker", "Kuhn poker"],
)
def test_the_tables_of_the_appendix_are_those_that_their_records_give(arguments: str, row: str, count: int) -> None:
    printed = printed_by(*arguments.split())
    assert printed.count(row) == count
    assert printed in TABLES.read_text(encoding="utf-8"), printed


def test_the_scores_of_the_results_are_the_table_of_the_appendix() -> None:
    (scores,) = [each for each in TABLES.read_text(encoding="utf-8").split("\n\n") if each.startswith("| player |")]
    assert scores in RESULTS.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("folder", "seeds", "row"),
    [("", (3, 4, 5), "| taught | taught | 720 |"), ("both_seats", (1, 2), "| taught | taught | 480 |")],
)
def test_the_tables_of_taught_hints_and_their_headlines_are_those_that_the_records_give(
    folder: str, seeds: tuple[int, ...], row: str, tmp_path: Path
) -> None:
    records = ROOT / "docs" / "proof-taught" / folder
    for seed in seeds:
        shutil.copy(records / f"{seed}.json", tmp_path)
    printed = printed_by("benchmarks.taught", "tables", "--out", str(tmp_path))
    assert row in printed
    assert printed in TABLES.read_text(encoding="utf-8"), printed
    assert (tmp_path / "headline.json").read_text() == (records / "headline.json").read_text()

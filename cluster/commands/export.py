"""`spag-ray export`: a run's games as data for other programs."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from rich.console import Console
from rich.text import Text

from spag_ray.results.export.files import Format, write_export
from spag_ray.results.export.rows import Rows, Unit
from spag_ray.results.report.files import read_files

SUFFIXES: dict[Format, str] = {"parquet": ".parquet", "jsonl": ".jsonl", "hf": "-hf"}


def run_export(
    folder: Path, form: Format, unit: Unit, stages: Collection[str], out: Path | None, console: Console
) -> None:
    """`spag-ray export`: writes to `out`, or into the run folder. Raises RunFolderError or InputError."""
    files = read_files(folder)
    rows = Rows(files, unit)
    out = out or folder / f"{unit}{SUFFIXES[form]}"
    write_export(rows, stages, form, out)
    notes = [f"{name}: {fault}" for name, fault in rows.faults.items()]
    if files.config is None:
        notes.append("config.yaml cannot be read: rewards of Taboo and advantages are left out")
    for line in (*notes, f"{rows.num_rows:,} {unit} of {rows.num_games:,} games in {out}"):
        console.print(Text(line), soft_wrap=True)

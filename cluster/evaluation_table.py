"""What is printed of a run's evaluations: stages by tasks, beside the paper's own numbers."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.table import Table

from spag_ray.evaluations import PAPER_METRICS, PAPER_SCORES, Evaluation, scale_of, score_text

PER_TABLE = 8  # columns that fit 100 characters


def evaluation_tables(rows: Sequence[Evaluation]) -> list[Table]:
    """Shares in per cent, with the standard error. Of the paper's tasks the metric that the paper's numbers are held
    against, of others every metric."""
    wanted = [(row.task, row.metric) for row in rows if PAPER_METRICS.get(row.task, row.metric) == row.metric]
    columns = list(dict.fromkeys(wanted))
    parts = [columns[start : start + PER_TABLE] for start in range(0, len(columns), PER_TABLE)]
    return [_table(rows, part) for part in parts]


def _table(rows: Sequence[Evaluation], columns: Sequence[tuple[str, str]]) -> Table:
    table = Table(
        title="Tasks: score ± standard error, shares in %",
        title_justify="left",
        box=box.SIMPLE,
        padding=(0, 1, 0, 0),
    )
    table.add_column("stage", no_wrap=True)
    for task, metric in columns:
        table.add_column(f"{task}\n{metric}", justify="right", overflow="fold")
    found = {(row.stage, row.task, row.metric): row for row in rows}
    scales = [
        scale_of(metric, [row.value for row in rows if (row.task, row.metric) == (task, metric)])
        for task, metric in columns
    ]
    for stage in dict.fromkeys(row.stage for row in rows):
        cells = (score_text(found.get((stage, *column)), scale) for column, scale in zip(columns, scales, strict=True))
        table.add_row(stage, *cells)
    tasks = [task for task, _ in columns]
    if any(task in PAPER_METRICS for task in tasks):
        for name, scores in PAPER_SCORES.items():
            table.add_row(name, *(f"{scores[task]:.1f}" if task in scores else "" for task in tasks))
    return table

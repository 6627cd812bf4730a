"""Results of lm-evaluation-harness tasks for a run's stages: rows of evaluations.json, and the paper's own numbers.

>>> row = Evaluation("spag-1", "arc_easy", "acc", 0.763, 0.0087, 2376, 0)
>>> Evaluation.from_json(asdict(row)) == row
True
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from spag_ray.errors import InputError
from spag_ray.host.whole_files import write_atomically

FILE = "evaluations.json"

# The paper's tasks, and the harness metric to compare its numbers with; the paper does not name the metrics.
PAPER_METRICS = {
    "bbh": "exact_match",
    "mutual": "r@1",
    "arc_easy": "acc",
    "arc_challenge": "acc",
    "logiqa2": "acc",
    "winogrande": "acc",
    "piqa": "acc",
    "mmlu": "acc",
}
# Per cent, from arXiv 2404.10642. docs/evaluation.md says more about MMLU.
PAPER_SCORES: dict[str, dict[str, float]] = {
    "LLaMA-2-7B, paper": {
        "bbh": 32.5,
        "mutual": 50.9,
        "arc_easy": 76.3,
        "arc_challenge": 43.3,
        "logiqa2": 25.3,
        "winogrande": 69.1,
        "piqa": 78.1,
    },
    "SPAG-3, paper": {
        "bbh": 34.9,
        "mutual": 55.3,
        "arc_easy": 78.5,
        "arc_challenge": 47.5,
        "logiqa2": 31.0,
        "winogrande": 69.9,
        "piqa": 79.4,
    },
}


@dataclass(frozen=True)
class Evaluation:
    """One metric of one task for one stage. `value` is the harness's value (a share for accuracies). `stderr` is None
    if the harness gives none, for example with a single sample."""

    __pydantic_config__: ClassVar = ConfigDict(allow_inf_nan=False)
    stage: str
    task: str
    metric: str
    value: float
    stderr: float | None
    num_samples: int
    num_fewshot: int

    @classmethod
    def from_json(cls, row: Mapping[str, Any]) -> Evaluation:
        """The inverse of `asdict`. Raises ValueError for a malformed row."""
        return _ROW.validate_python(row)


_ROW = TypeAdapter(Evaluation)
_ROWS = TypeAdapter(list[Evaluation])


def write_evaluations(path: Path, evaluations: Sequence[Evaluation]) -> None:
    """Write a JSON list with one row per line; an existing file is replaced atomically."""
    rows = ",\n".join(json.dumps(asdict(each), ensure_ascii=False) for each in evaluations)
    write_atomically(path, f"[\n{rows}\n]\n")


def read_evaluations(path: Path) -> list[Evaluation]:
    """The rows of evaluations.json. Raises InputError with the file's name if `write_evaluations` did not write it."""
    try:
        return _ROWS.validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise InputError(f"{path}: no evaluations can be read from it ({type(error).__name__}: {error})") from error


def task_names(given: Iterable[str]) -> list[str]:
    """The names, with `paper` replaced by the paper's tasks, without duplicates.

    >>> task_names(["piqa", "paper"])[:3]
    ['piqa', 'bbh', 'mutual']
    """
    return list(dict.fromkeys(name for each in given for name in (PAPER_METRICS if each == "paper" else [each])))


def scale_of(metric: str, values: Iterable[float]) -> float:
    """The factor for displaying a metric's values: 100 for shares; 1 for perplexities, bits and points."""
    is_share = all(0 <= value <= 1 for value in values) and not metric.endswith(("perplexity", "bits_per_byte"))
    return 100.0 if is_share else 1.0


def score_texts(rows: Sequence[Evaluation]) -> dict[tuple[str, str], dict[str, str]]:
    """{(task, metric): {stage: its value and standard error}}, all values of a metric on one scale."""
    found: dict[tuple[str, str], dict[str, str]] = {}
    for row in rows:
        scale = scale_of(
            row.metric, (each.value for each in rows if (each.task, each.metric) == (row.task, row.metric))
        )
        error = "" if row.stderr is None else f" ± {scale * row.stderr:.1f}"
        found.setdefault((row.task, row.metric), {})[row.stage] = f"{scale * row.value:.1f}{error}"
    return found


def paper_text(paper: str, task: str, metric: str) -> str:
    """The score of PAPER_SCORES; "" if there is none of this metric."""
    score = PAPER_SCORES[paper].get(task) if PAPER_METRICS.get(task) == metric else None
    return "" if score is None else f"{score:.1f}"

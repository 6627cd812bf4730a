"""One `record()` for everything that is measured: a line of JSON in the run folder."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path
from typing import Any


class Metrics:
    """Appends to metrics.jsonl; each line has `time` (seconds since the epoch), `kind`, and the values."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / "metrics.jsonl").open("a", encoding="utf-8")

    def record(self, kind: str, **values: str | int | float) -> None:
        """A number that is not finite is written as null: JSON has no word for it."""
        values = {key: _finite(value) for key, value in values.items()}
        self._file.write(json.dumps({"time": round(time.time(), 3), "kind": kind, **values}) + "\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


def _finite(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value

"""Why a check failed, from what its processes have printed: the first error. Later ones only say that other processes
failed because of it."""

from __future__ import annotations

import re
from pathlib import Path

from cluster.rollout.engine_faults import root_cause

_ERROR = re.compile(r"^(?:\(\w+[^)]*\) )?(?:spag-ray: |[\w.]*(?:Error|Exception)\b).*")
_POINTERS = ("Engine core initialization failed", "RayTaskError", "ray.exceptions.")  # to another process's error


def first_error(output: str) -> str | None:
    """Of an engine's core or worker, if it has printed one; None if there is no error at all."""
    if (cause := root_cause(output)) is not None:
        return cause
    named = [line.strip() for line in output.splitlines() if _ERROR.match(line)]
    return next((line for line in named if not any(each in line for each in _POINTERS)), next(iter(named), None))


def cause_of(output: str) -> str:
    """In one line; the last line if no error is named, "" if nothing was printed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return first_error(output) or (lines[-1] if lines else "")


def cause_of_run(output: str, logs: Path) -> str:
    """What the command says at its end, and the first error in the logs of the run's processes."""
    told = ([line.strip() for line in output.splitlines() if line.strip()] or [""])[-1]
    # An engine's or a rank's error comes before that of the run, which only hears of it.
    for log in sorted(logs.glob("*.log"), key=lambda path: (path.stem in ("run", "train"), path.name)):
        cause = first_error(log.read_text(encoding="utf-8", errors="replace"))
        if cause is not None and cause not in told:
            return f"{told}; first error in {log.name}: {cause}"
    return told

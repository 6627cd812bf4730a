"""`spag-ray submit`: `train` as a job of a Ray cluster."""

from __future__ import annotations

import sys
from pathlib import Path

import typer
from rich.console import Console

from cluster.launch.jobs import list_parcel, submit_job
from spag_ray.config.run import RunConfig


def run_submit(
    config: RunConfig, address: str, run_dir: Path, console: Console, *, resume: bool, follow: bool, dry_run: bool
) -> int:
    """`spag-ray submit`: returns the job's exit code, or 0 when it is not followed. `dry_run`: list what would be sent,
    and send nothing."""
    if dry_run:
        list_parcel(config, run_dir, console)
        return 0
    return submit_job(config, address, run_dir, console, resume=resume, follow=follow, ask=_ask_to_stop)


def _ask_to_stop() -> bool:
    return sys.stdin.isatty() and typer.confirm("stop the job, too?", default=False)

"""`spag-ray stop`: stops a run at a point where nothing is lost."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def run_stop(run: str, address: str, console: Console) -> None:
    """`spag-ray stop`: `run` is the run folder of a job; with ray://, the run's name."""
    if address.startswith("ray://"):
        from cluster.console import attach, session

        with session(address):
            attach(run=Path(run).name).stop()
        return
    from cluster.launch.jobs import stop_job

    stop_job(address, Path(run), console)

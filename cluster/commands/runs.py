"""`spag-ray runs` and `spag-ray stop`: the runs on a cluster."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from spag_ray.host.addresses import Form, check_address


def run_runs(address: str, console: Console) -> None:
    """`spag-ray runs`: a line for each run; for jobs, with the job, its status and its run folder."""
    if check_address(address, Form.JOBS, Form.SESSION, where="--address") is Form.SESSION:
        from cluster.console import runs_here, session

        with session(address):
            names = [name for name, _ in runs_here()]
        _print_all(names, address, console)
        return
    from cluster.launch.jobs import jobs_at

    _print_all([f"{job}  {status}  {folder}" for job, status, folder in jobs_at(address)], address, console)


def _print_all(lines: Sequence[str], address: str, console: Console) -> None:
    for line in lines or [f"no runs at {address}"]:
        console.print(line, soft_wrap=True, markup=False)


def run_stop(run: str, address: str, console: Console) -> None:
    """`spag-ray stop`: `run` is the run folder of a job; with ray://, the run's name."""
    if check_address(address, Form.JOBS, Form.SESSION, where="--address") is Form.SESSION:
        from cluster.console import attach, session

        with session(address):
            attach(run=Path(run).name).stop()
        return
    from cluster.launch.jobs import stop_job

    stop_job(address, Path(run), console)

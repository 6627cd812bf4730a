"""`spag-ray runs` and `spag-ray stop`: the runs on a cluster."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console


def run_runs(address: str, console: Console) -> None:
    """`spag-ray runs`: a line for each run; for jobs, with the job, its status and its run folder."""
    if address.startswith("ray://"):
        from cluster.console import runs_here, session

        with session(address):
            for name, _ in runs_here():
                console.print(name, soft_wrap=True)
        return
    from cluster.launch.jobs import jobs_at

    for job, status, folder in jobs_at(address):
        console.print(f"{job}  {status}  {folder}", soft_wrap=True)


def run_stop(run: str, address: str, console: Console) -> None:
    """`spag-ray stop`: `run` is the run folder of a job; with ray://, the run's name."""
    if address.startswith("ray://"):
        from cluster.console import attach, session

        with session(address):
            attach(run=Path(run).name).stop()
        return
    from cluster.launch.jobs import stop_job

    stop_job(address, Path(run), console)

"""`spag-ray runs`: the runs on a cluster."""

from __future__ import annotations

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

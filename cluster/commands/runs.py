"""The runs of a cluster: `spag-ray submit` sends one as a job, `runs` lists them, `stop` ends one, `attach` opens a
Python session with one."""

from __future__ import annotations

import code
import sys
from pathlib import Path

import typer
from rich.console import Console

from cluster.monitor.terminal import say
from cluster.runtime.output_files import label_of
from spag_ray.config.run import RunConfig
from spag_ray.host.addresses import Form, check_address


def run_submit(
    config: RunConfig,
    address: str,
    run_dir: Path,
    console: Console,
    *,
    resume: bool,
    follow: bool,
    dry_run: bool,
    seeds: str | None = None,
) -> int:
    """`spag-ray submit`: returns the job's exit code, or 0 when it is not followed. `dry_run`: list what would be sent,
    and send nothing. `seeds`: as `train --seeds` takes them."""
    from cluster.launch.jobs import check_run_dir, submit_job
    from cluster.launch.parcel import parcel_of

    if dry_run:
        check_run_dir(run_dir)
        with parcel_of(config, console, is_listed=True, has_seeds=seeds is not None):
            return 0

    def ask() -> bool:
        return sys.stdin.isatty() and typer.confirm("stop the job, too?", default=False)

    return submit_job(config, address, run_dir, console, resume=resume, follow=follow, ask=ask, seeds=seeds)


def run_runs(address: str, console: Console) -> None:
    """`spag-ray runs`: a line for each run; for jobs, with the job, its status and its run folder."""
    if check_address(address, Form.JOBS, Form.SESSION, where="--address") is Form.SESSION:
        from cluster.console import runs_here, session

        with session(address):
            lines = [name for name, _ in runs_here()]
    else:
        from cluster.launch.jobs import jobs_at

        lines = ["  ".join(job) for job in jobs_at(address)]
    for line in lines or [f"no runs at {address}"]:
        say(console, line)


def run_stop(run: str, address: str, console: Console) -> None:
    """`spag-ray stop`: `run` is the run folder of a job; with ray://, the run's name."""
    if check_address(address, Form.JOBS, Form.SESSION, where="--address") is Form.SESSION:
        from cluster.console import attach, session

        with session(address):
            attach(run=label_of(Path(run)) if "/" in run else run).stop()
        return
    from cluster.launch.jobs import stop_job

    stop_job(address, Path(run), console)


def run_attach(address: str, run: str | None) -> None:
    """`spag-ray attach`: returns when the session is closed; the run continues."""
    from cluster.console import attach, session

    with session(address):
        attached = attach(run=run)
        _interact({"run": attached}, f"run = {attached}\nhelp(run) says what it can do")


def _interact(names: dict[str, object], banner: str) -> None:
    """IPython if it is installed, else Python's own prompt."""
    try:
        from IPython import start_ipython
    except ImportError:
        code.interact(banner, local=names, exitmsg="")
        return
    print(banner)
    start_ipython(argv=["--no-banner"], user_ns=names)

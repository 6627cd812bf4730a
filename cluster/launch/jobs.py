"""Runs as Ray jobs: submits them, follows their output, stops them.

A job runs `spag-ray train`. Its working directory holds the files that were sent with it (parcel.py).
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime
import logging
import shlex
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console

from cluster.monitor.terminal import say
from cluster.runtime.ray_session import first_line
from cluster.runtime.ray_token import ClusterError, no_token, use_token
from spag_ray.config.run import RunConfig
from spag_ray.errors import ConfigError
from spag_ray.host.addresses import Form, ask_directly, check_address

RUN_DIR = "run_dir"  # the key of a job's metadata that holds its run folder
NO_AGENT, AGENT_WAIT_S = "No available agent to submit job", 60  # Ray's text while a cluster starts
AFTER_NOTICE_S = 15  # time for the driver to end after the run's time is up
STOP_WAIT = "RAY_JOB_STOP_WAIT_TIME_S"  # how long Ray waits before it kills a job that is to stop
ANSWER_WITHIN_S = 60.0  # the dashboard's answer to one request


def submit_job(
    config: RunConfig,
    address: str,
    run_dir: Path,
    console: Console,
    *,
    resume: bool,
    follow: bool,
    ask: Callable[[], bool],
    seeds: str | None = None,
) -> int:
    """Submits a job. `seeds`: as `train --seeds` takes them. Returns its exit code, or 0 if it is not followed. On
    Ctrl-C, `ask` decides whether to stop it.

    Raises ConfigError for a configuration that cannot work in a job, ClusterError if the cluster refuses the job.
    """
    from cluster.launch.parcel import parcel_of  # which no job has

    check_run_dir(run_dir)
    client = job_client(address)
    stamp = f"{datetime.datetime.now():%Y%m%d-%H%M%S}"
    wait_s = int(config.checkpoint.stop_within_s) + AFTER_NOTICE_S
    with parcel_of(config, console, has_seeds=seeds is not None) as folder:
        command = ["python", "-m", "spag_ray", "train", "run.yaml", "--run-dir", str(run_dir)]
        command += [*(["--resume"] if resume else []), *([] if seeds is None else ["--seeds", seeds])]
        with _said_in_one_line(address):
            job = submitted(
                client,
                entrypoint=shlex.join(command),
                submission_id=f"spag-{config.name}-{stamp}",
                metadata={RUN_DIR: str(run_dir)},
                runtime_env={
                    "working_dir": str(folder),
                    "env_vars": {STOP_WAIT: str(wait_s)},  # Ray's default is 3
                },
            )
    say(console, f"job: {job}   run folder: {run_dir}")
    say(console, f"stop it: spag-ray stop {shlex.quote(str(run_dir))} --address {address}")
    if not follow:
        return 0
    with _said_in_one_line(address):
        return follow_job(client, job, console, ask)


def submitted(client: Any, **job: Any) -> str:
    """Submits the job; waits for the agents of a cluster that has just started."""
    end = time.monotonic() + AGENT_WAIT_S
    while True:
        try:
            return str(client.submit_job(**job))
        except RuntimeError as error:
            if NO_AGENT not in str(error) or time.monotonic() > end:
                raise
            time.sleep(1.0)


def stop_job(address: str, run_dir: Path, console: Console) -> None:
    """Stop the job that runs in a folder, and wait until it has ended. Raises ClusterError when there is none."""
    client = job_client(address)
    with _said_in_one_line(address):
        running = [job for job in client.list_jobs() if job.metadata and job.metadata.get(RUN_DIR) == str(run_dir)]
        running = [job for job in running if not job.status.is_terminal()]
        if not running:
            raise ClusterError(f"no job at {address} runs in {run_dir}; see `spag-ray runs --address {address}`")
        for job in running:
            client.stop_job(job.submission_id)
            say(console, f"asked {job.submission_id} to stop")
            wait_s = float((job.runtime_env or {}).get("env_vars", {}).get(STOP_WAIT, 0)) + ANSWER_WITHIN_S
            deadline = time.monotonic() + wait_s
            while not client.get_job_status(job.submission_id).is_terminal():
                if time.monotonic() > deadline:
                    raise ClusterError(
                        f"{job.submission_id} has not ended {wait_s:.0f} s after it was asked to, and Ray has not "
                        f"killed it: look at the cluster's head, then at {run_dir}/logs"
                    )
                time.sleep(0.5)
    say(console, f"stopped; continue with spag-ray submit ... --run-dir {shlex.quote(str(run_dir))} --resume")


def jobs_at(address: str) -> list[tuple[str, str, str]]:
    """(job, status, run folder) of every job that is a run, the newest last."""
    with _said_in_one_line(address):
        jobs = [job for job in job_client(address).list_jobs() if job.metadata and RUN_DIR in job.metadata]
    jobs.sort(key=lambda job: job.start_time or 0)
    return [(str(job.submission_id), str(job.status), job.metadata[RUN_DIR]) for job in jobs]


def follow_job(client: Any, job: str, console: Console, ask: Callable[[], bool]) -> int:
    """Print a job's output until it ends; returns its exit code, 0 if it was stopped from here. On Ctrl-C, `ask`
    decides whether it is stopped."""
    log = _Log(client, job, console)
    wanted = {"SUCCEEDED"}
    while True:
        try:
            if client.get_job_status(job).is_terminal():
                break
            with contextlib.suppress(CutOffError):  # if the connection does not come back, the next question for the
                asyncio.run(log.show())  # status says so
            time.sleep(0.5)
        except KeyboardInterrupt:
            if not ask():
                say(console, f"{job} continues; see its output with `ray job logs -f {job}`")
                return 0
            wanted.add("STOPPED")
            client.stop_job(job)
    asyncio.run(log.show())
    info = client.get_job_info(job)
    say(console, f"{job}: {info.status}")
    return info.driver_exit_code if info.driver_exit_code is not None else int(str(info.status) not in wanted)


class CutOffError(RuntimeError):
    """The connection was lost over which a job's output comes."""


@dataclass(eq=False)
class _Log:
    """A job's output. Each character is printed once, although every connection sends the whole output again."""

    client: Any
    job: str
    console: Console
    _num_shown: int = 0

    async def show(self) -> None:
        """Prints the output until the job or the connection ends. Raises CutOffError if that was lost."""
        seen = 0
        async for text in self._texts():
            seen += len(text)
            num_new = seen - self._num_shown
            if num_new > 0:
                self._num_shown = seen
                new = text[-num_new:]
                self.console.print(new, end="", markup=False, emoji=False, highlight=False, soft_wrap=True)

    async def _texts(self) -> AsyncIterator[str]:
        import aiohttp  # with Ray's client

        try:
            async for text in self.client.tail_job_logs(self.job):
                yield text
        except (RuntimeError, OSError, aiohttp.ClientError) as error:
            raise CutOffError(f"the job's output is cut off: {first_line(error)}") from error


def check_run_dir(run_dir: Path) -> None:
    """A job's working directory is a copy that is removed with the job. Raises ConfigError for a folder in it."""
    if not run_dir.is_absolute():
        raise ConfigError(
            f"--run-dir {run_dir}: a job's working directory is temporary, so the run folder has to be an absolute "
            "path on a file system that all nodes share"
        )


def job_client(address: str) -> Any:
    """Raises ClusterError, one line, if there is no answer or the token is wrong."""
    from ray.job_submission import JobSubmissionClient

    class BoundedClient(JobSubmissionClient):
        """Ray's client waits for an answer for ever."""

        def _do_request(self, method: str, endpoint: str, **arguments: Any) -> Any:
            return super()._do_request(method, endpoint, timeout=ANSWER_WITHIN_S, **arguments)

    check_address(address, Form.JOBS, where="--address")
    ask_directly(address)
    use_token()
    logging.getLogger("ray.dashboard").setLevel(logging.WARNING)  # it logs every connection that ends
    with _said_in_one_line(address):
        try:
            return BoundedClient(address)
        except (OSError, LookupError, TypeError, ValueError) as error:  # another server's answer, which Ray cannot read
            told = f"no dashboard of Ray answers there ({first_line(error)}); is the cluster up? Its port is 8265"
            raise ConnectionError(told) from error


@contextlib.contextmanager
def _said_in_one_line(address: str) -> Iterator[None]:
    import ray

    try:
        yield
    except ray.exceptions.AuthenticationError as error:
        raise no_token(address) from error
    except (OSError, RuntimeError) as error:  # the former also of `requests`: the connection is lost, or no answer came
        raise ClusterError(f"{address}: {first_line(error)}") from error

"""A job's output across lost connections and Ctrl-C; the cluster itself is in test_cluster.py."""

from collections.abc import AsyncIterator
from types import SimpleNamespace

import aiohttp
import pytest
from rich.console import Console

from cluster.commands.runs import run_runs
from cluster.guarded import run_guarded
from cluster.launch import jobs
from cluster.launch.jobs import follow_job
from spag_ray.errors import extra


class Client:
    """Ray's, of a job whose connections bring this; an exception ends one. The job ends with the last of them."""

    def __init__(self, *connections: list[str | BaseException]) -> None:
        self._connections = list(connections)
        self._last = connections[-1]
        self.stopped = 0

    async def tail_job_logs(self, job: str) -> AsyncIterator[str]:
        for text in self._connections.pop(0) if self._connections else self._last:
            if isinstance(text, BaseException):
                raise text
            yield text

    def get_job_status(self, job: str) -> SimpleNamespace:
        return SimpleNamespace(is_terminal=lambda: not self._connections)

    def stop_job(self, job: str) -> None:
        self.stopped += 1

    def get_job_info(self, job: str) -> SimpleNamespace:
        return SimpleNamespace(status="FAILED", driver_exit_code=7)


GONE = [RuntimeError("the connection is gone"), aiohttp.ClientError("no handshake"), TimeoutError()]


@pytest.mark.parametrize("cut", [*GONE, KeyboardInterrupt()])
def test_every_line_is_shown_once_with_the_jobs_exit_code(cut: BaseException, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    client, console = Client(["a\n:cat:\n", cut], ["a\n", ":cat:\nc\n"]), Console(record=True, width=80)
    assert follow_job(client, "job", console, lambda: True) == 7
    assert console.export_text().split() == ["a", ":cat:", "c", "job:", "FAILED"]
    assert client.stopped == isinstance(cut, KeyboardInterrupt)


def test_a_job_that_is_not_to_stop_goes_on() -> None:
    client, console = Client(["a\n", KeyboardInterrupt()], []), Console(record=True, width=80)
    assert follow_job(client, "job", console, lambda: False) == 0
    assert client.stopped == 0
    assert "job continues" in console.export_text()


def test_a_light_installation_says_what_is_missing(capsys: pytest.CaptureFixture[str]) -> None:
    def train(standalone_mode: bool) -> None:
        raise ModuleNotFoundError("No module named 'torch'", name="torch")

    assert run_guarded(train) == 2
    assert extra("cpu") in capsys.readouterr().err

    def wrong(standalone_mode: bool) -> None:
        raise ModuleNotFoundError("No module named 'cluster.nowhere'", name="cluster.nowhere")

    with pytest.raises(ModuleNotFoundError):
        run_guarded(wrong)


def test_a_job_waits_for_a_cluster_that_has_just_started(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs.time, "sleep", lambda seconds: None)
    answers: list[str | Exception] = [RuntimeError(f"status code 500: {jobs.NO_AGENT}, please try again later."), "job"]

    def submit_job(**_: object) -> str:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    assert jobs.submitted(SimpleNamespace(submit_job=submit_job), entrypoint="train") == "job"
    answers[:] = [RuntimeError("no such cluster")]
    with pytest.raises(RuntimeError, match="no such cluster"):
        jobs.submitted(SimpleNamespace(submit_job=submit_job), entrypoint="train")


def test_a_cluster_without_runs_is_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jobs, "jobs_at", lambda address: [])
    console = Console(record=True, width=80)
    run_runs("http://127.0.0.1:8265", console)
    assert console.export_text().strip() == "no runs at http://127.0.0.1:8265"

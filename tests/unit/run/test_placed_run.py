"""What the end of a run waits for: the processes that its actors have started."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from cluster.launch import placed_run


class Worker(SimpleNamespace):
    """A process of Ray, as psutil shows it."""

    def name(self) -> str:
        if self.is_gone:
            raise psutil.NoSuchProcess(self.pid)
        return str(self.title)

    def children(self, recursive: bool) -> list[int]:
        assert recursive
        return list(self.started)


def test_a_worker_that_ends_meanwhile_hides_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    workers = [
        Worker(pid=1, is_gone=False, title="raylet", started=[]),
        Worker(pid=2, is_gone=False, title="ray::EngineActor", started=[21, 22]),
        Worker(pid=3, is_gone=True, title="ray::IDLE", started=[]),
        Worker(pid=4, is_gone=False, title="ray::EngineActor", started=[41]),
    ]
    me: Any = SimpleNamespace(children=lambda recursive: workers)
    monkeypatch.setattr(placed_run.psutil, "Process", lambda: me)
    assert placed_run._processes_of_actors() == [21, 22, 41]


def test_what_does_not_end_is_killed_and_gone_on_return() -> None:
    ignores = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print(1, flush=True); time.sleep(60)"
    with subprocess.Popen([sys.executable, "-c", ignores], stdout=subprocess.PIPE) as child:
        assert child.stdout is not None
        child.stdout.readline()
        placed_run._wait_for_the_end([psutil.Process(child.pid)], seconds=0.3)
        assert not psutil.pid_exists(child.pid)

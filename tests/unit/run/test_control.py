"""Pausing and stopping a run."""

import errno
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ray.exceptions import RayTaskError

from cluster.run.parts import RunControl
from cluster.run.run import Run
from spag_ray.errors import LeaseLostError, RunFolderError, StopRequestedError
from spag_ray.host.folder_lease import FolderLease
from spag_ray.host.whole_files import write_atomically
from tests.support.full_disk import full_disk


def test_whoever_asks_waits_while_the_run_is_paused_and_ends_when_it_is_to_stop(tmp_path: Path) -> None:
    control = RunControl(FolderLease.take(tmp_path))
    control.check_stop()
    assert control.seconds_left == 0.0
    control.is_paused = True
    stopped = threading.Event()

    def ask() -> None:
        with pytest.raises(StopRequestedError):
            control.check_stop()
        stopped.set()

    waiting = threading.Thread(target=ask)
    waiting.start()
    time.sleep(0.3)
    assert control.is_waiting
    assert not stopped.is_set()
    control.stop_soon(20)
    waiting.join(5)
    assert stopped.is_set()
    assert control.is_to_stop
    assert not control.is_waiting
    assert 15 < control.seconds_left <= 20


def test_a_run_whose_folder_is_anothers_is_told_so_when_it_asks(tmp_path: Path) -> None:
    control = RunControl(FolderLease(tmp_path, 1, "nobody's"))
    with pytest.raises(LeaseLostError):
        control.check_stop()


@pytest.mark.parametrize("is_of_buffer", [False, True])
def test_a_disk_that_refuses_any_file_of_a_run_is_told_in_one_line(is_of_buffer: bool, tmp_path: Path) -> None:
    """Such as published.json, or the cursor of a stream: metrics, games and checkpoints have lines of their own."""
    closed: list[bool] = []
    lease = FolderLease.take(tmp_path)
    run: Any = SimpleNamespace(_folder=tmp_path, _lease=lease, close=lambda: closed.append(True))

    def train() -> None:
        try:
            with full_disk():
                write_atomically(tmp_path / "published.json", "{}")
        except OSError as error:
            if not is_of_buffer:
                raise
            raise RayTaskError("batch", "Traceback ...", error).as_instanceof_cause() from None

    with (
        pytest.raises(RunFolderError, match=r"it cannot be written or read .* look at the room on its disk") as caught,
        Run._ending(run),
    ):
        train()
    assert "\n" not in str(caught.value)
    assert json.loads((tmp_path / "ended.json").read_text()) == {"ended": "failed", "reason": str(caught.value)}
    with pytest.raises(ConnectionError), Run._ending(run):
        raise ConnectionError("no answer")
    with pytest.raises(PermissionError), Run._ending(run):
        raise PermissionError(errno.EACCES, "of a socket")
    assert closed == [True, True, True]

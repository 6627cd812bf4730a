"""Pausing and stopping a run."""

import threading
import time
from pathlib import Path

import pytest

from cluster.run.parts import RunControl
from spag_ray.errors import LeaseLostError, StopRequestedError
from spag_ray.host.folder_lease import FolderLease


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

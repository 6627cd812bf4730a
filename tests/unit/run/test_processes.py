"""A process that ends with its parent, also when that is killed. Names of processes: test_folder_lease.py."""

import os
import signal
import subprocess
import sys
from pathlib import Path

from tests.support.waiting import is_running, wait_until

# The child of the fork writes its number when the kernel knows what to do.
PARENT = """
import os, sys, time
from pathlib import Path
from spag_ray.host.processes import end_with

parent = os.getpid()
if os.fork() == 0:
    if sys.argv[2] == "late":
        parent += 1  # as if it had ended: another process is the parent now
    end_with(parent)
    Path(sys.argv[1]).write_text(str(os.getpid()))
    time.sleep(600)
print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_it_ends_when_its_parent_is_killed(tmp_path: Path) -> None:
    child = tmp_path / "child"
    parent = subprocess.Popen([sys.executable, "-c", PARENT, str(child), "in time"])
    wait_until(lambda: child.exists() and child.read_text(), 60)
    number = int(child.read_text())
    assert is_running(number)
    os.kill(parent.pid, signal.SIGKILL)
    parent.wait(10)
    wait_until(lambda: not is_running(number), 60)


def test_it_ends_at_once_if_its_parent_has_ended_before(tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, str(tmp_path / "child"), "late"]
    assert subprocess.run(command, capture_output=True, text=True, timeout=60).stdout == "1\n"
    assert not (tmp_path / "child").exists()

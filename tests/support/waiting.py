"""Waits of tests, each with a bound, and what they wait for."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any


def wait_until(is_so: Callable[[], Any], seconds: float, what: object = "") -> None:
    """`what`: what is waited for, or what there is to see."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)


def is_running(process: int) -> bool:
    """False for one that has ended, also if nobody has asked how."""
    try:
        return (Path("/proc") / str(process) / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False

"""Waits of tests, each with a bound."""

import time
from collections.abc import Callable
from typing import Any


def wait_until(is_so: Callable[[], Any], seconds: float, what: object = "") -> None:
    """`what`: what is waited for, or what there is to see."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, f"not within {seconds} s: {what}"
        time.sleep(0.05)

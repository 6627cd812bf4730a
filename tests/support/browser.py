"""Chromium for tests of pages."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from typing import Any

from playwright.sync_api import expect, sync_playwright

from tests.support.not_here import not_here

ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@contextlib.contextmanager
def chromium(timeout_ms: float) -> Iterator[Any]:
    """A started browser; `expect` waits for `timeout_ms`."""
    program = shutil.which("chromium") or not_here("no `chromium` on the PATH (Debian has it as a package)")
    expect.set_options(timeout=timeout_ms)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield started
        started.close()

"""Chromium for tests of pages."""

import contextlib
import re
import shutil
from collections.abc import Callable, Iterator
from typing import Any

from playwright.sync_api import expect, sync_playwright

from tests.support.not_here import not_here

ARGUMENTS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
)  # fmt: skip


@contextlib.contextmanager
def opened(
    browser: Any,
    url: str,
    *,
    only: str,
    shorten: Callable[[str], str] = str,
    timeout_ms: float,
    may_fail: bool = False,
    **options: Any,
) -> Iterator[Any]:
    """A page that is ready, in a session of its own. At its end nothing may have gone wrong, and `only` been asked for,
    with addresses as `shorten` makes them. `may_fail`: the test lets requests fail."""
    context = browser.new_context(**options)
    context.set_default_timeout(timeout_ms)
    page = context.new_page()
    said: list[str] = []
    asked: set[str] = set()

    def dismissed(dialog: Any) -> None:
        said.append(f"dialog {dialog.message}")
        dialog.dismiss()

    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", dismissed)
    page.on("request", lambda request: asked.add(shorten(request.url)))
    page.goto(url)
    page.wait_for_selector("html[data-ready]")
    yield page
    assert [each for each in said if not (may_fail and "Failed to load resource" in each)] == []
    assert asked == {only}
    context.close()


def server_of(url: str) -> str:
    """A file that the page saves is made by the page."""
    return re.sub(r"(//[^/]*/).*", r"\1", url.removeprefix("blob:"))


@contextlib.contextmanager
def chromium(timeout_ms: float) -> Iterator[Any]:
    """A started browser; `expect` waits for `timeout_ms`."""
    program = shutil.which("chromium") or not_here("no `chromium` on the PATH (Debian has it as a package)")
    expect.set_options(timeout=timeout_ms)
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=program, args=list(ARGUMENTS))
        yield started
        started.close()

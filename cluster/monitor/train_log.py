"""What a run printed, kept in its folder: logs/train.log. Every attempt appends to it.

with printed_on(console) as log:                   # whatever the console prints from here on, as plain text
    log.open(folder)                               # once the folder is this run's; also writes what was printed before
with followed(folder, status):                     # of a run without a console: its notes and its progress
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import threading
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, cast

from rich.console import Console, ConsoleRenderable, NewLine, RenderHook
from rich.control import Control
from rich.text import Text

from cluster.monitor.progress import ProgressLine
from cluster.types import Progress
from spag_ray import __version__
from spag_ray.errors import LeaseLostError, SpagError

WIDTH = 100  # columns of a table
_ESCAPES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])|[\x00-\x08\x0b-\x1f]")


class TrainLog(RenderHook):
    """The log of one attempt: a file that rich writes to, and the hook through which a console's lines reach it. Thread
    safe. A disk without room does not end the run here; whatever the run itself writes next does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._file: IO[str] | None = None
        self._printed_before = ""
        file = cast(IO[str], self)
        self.console = Console(file=file, width=WIDTH, color_system=None, force_terminal=False, legacy_windows=False)

    def open(self, folder: Path) -> None:
        """Append to the log of this run folder from now on."""
        if self._file is not None:
            return
        now = time.strftime("%Y-%m-%d %H:%M:%S %z")
        before, self._printed_before = self._printed_before, ""
        with contextlib.suppress(OSError):
            (folder / "logs").mkdir(exist_ok=True)
            path = folder / "logs" / "train.log"
            self._file = path.open("a", encoding="utf-8", errors="backslashreplace")  # of names that are no UTF-8
        self.write(
            f"=== {now}: an attempt starts, spag_ray {__version__}, process {os.getpid()} on {socket.gethostname()}\n"
        )
        self.write(before)

    def line(self, text: str) -> None:
        self.write(f"{text}\n")

    def ended_with(self, error: BaseException) -> None:
        """A user's error as the command prints it, in one line; any other with its trace."""
        if isinstance(error, SpagError):
            if not isinstance(error, LeaseLostError):  # the folder is another run's
                self.line(f"spag-ray: {' '.join(str(error).split())}")
        elif not isinstance(error, KeyboardInterrupt):
            self.line("".join(traceback.format_exception(error)).rstrip())

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """Called by the console with what it is about to print. A live display moves the cursor and repaints by other
        means, and ends with an empty line: none of them is text that was printed."""
        for each in renderables:
            if not isinstance(each, Control | NewLine):
                self.console.print(each, soft_wrap=isinstance(each, Text))
        return renderables

    def write(self, text: str) -> int:
        """For rich."""
        with self._lock:
            plain = _ESCAPES.sub("", text)
            if self._file is None:
                self._printed_before += plain
            else:
                with contextlib.suppress(OSError):
                    self._file.write(plain)
                    self._file.flush()
        return len(text)

    def flush(self) -> None:
        """Every write is flushed."""

    def close(self) -> None:
        with self._lock, contextlib.suppress(OSError):
            if self._file is not None:
                self._file.close()


@contextlib.contextmanager
def printed_on(console: Console) -> Iterator[TrainLog]:
    """The log of what this console prints during the block, and of the error that ends it."""
    log = TrainLog()
    console.push_render_hook(log)
    try:
        yield log
    except BaseException as error:
        log.ended_with(error)
        raise
    finally:
        console.pop_render_hook()
        log.close()


@contextlib.contextmanager
def followed(folder: Path, status: Callable[[], Progress]) -> Iterator[None]:
    """During the block, a thread writes what a console would show of a run's status; then how it ended."""
    log, is_over = TrainLog(), threading.Event()
    log.open(folder)
    shown = ProgressLine(log.console)

    def follow() -> None:
        while not is_over.wait(0.5):
            shown.show(status(), None)

    thread = threading.Thread(target=follow, name="train-log", daemon=True)
    thread.start()
    ended: BaseException | None = None
    try:
        yield
    except BaseException as error:
        ended = error
        raise
    finally:
        is_over.set()
        thread.join()
        shown.show(status(), None)  # the last notes
        log.line("the run has finished") if ended is None else log.ended_with(ended)
        log.close()

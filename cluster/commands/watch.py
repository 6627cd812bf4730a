"""`spag-ray watch`: a live view of a run, from the files of its folder or over Ray Client; it never changes the run.

folder  reads metrics.jsonl (new lines), evaluations.json and ended.json; works on any machine that sees the folder
ray://  asks the run for lines of metrics.jsonl, its progress in a stage, and its notes
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cluster.monitor.frame import frame, headline
from cluster.monitor.run_view import KINDS, RunView
from cluster.monitor.terminal import ASCII
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import InputError, SpagError, meant_path
from spag_ray.host.addresses import Form, check_address, looks_like_address
from spag_ray.plain_yaml import read_settings
from spag_ray.results.metric_lines import MetricLines

if TYPE_CHECKING:  # imports Ray
    from cluster.console import AttachedRun

LOOK_EVERY_S = 1.0
PLAIN_EVERY_S = 15.0
PLAIN_HEIGHT = 40  # lines of a frame without a terminal


def run_watch(target: str, run: str | None, once: bool, console: Console) -> None:
    """`spag-ray watch`: `target` is a run's folder, or ray://HOST:PORT with the run's name in `run`."""
    if Path(target).exists() or not looks_like_address(target):
        watch(FolderSource(Path(target)), console, once)
        return
    check_address(target, Form.SESSION, where="watch")
    from cluster.console import attach, session

    with session(target):
        watch(AttachedSource(attach(run=run)), console, once)


class FolderSource:
    """Only reads files. Raises InputError for a folder that is not a run folder."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.yaml").is_file():
            near = "" if folder.exists() else meant_path(folder)
            told = f"{folder} is not a run folder (no config.yaml); give a run's folder, or ray://HEAD:10001"
            raise InputError(told + near)
        self._folder = folder
        self._begin()

    def _begin(self) -> None:
        self._lines = MetricLines(self._folder / "metrics.jsonl")
        self._view = RunView(self._folder.resolve().name, _config_of(self._folder), self._folder)
        self._evaluated_at = 0.0

    def look(self) -> RunView:
        """The run as it is now. It has an `end` once the run has ended."""
        if self._lines.is_replaced():
            self._begin()
        view = self._view
        ended = _json_of(self._folder / "ended.json")
        for line in self._lines.new():
            view.take(line)
        if isinstance(ended, dict):
            reason = f": {ended['reason']}" if ended.get("reason") else ""
            view.end = f"the run has {ended.get('ended')}{reason}"
        self._look_at_evaluations()
        return view

    def _look_at_evaluations(self) -> None:
        path = self._folder / "evaluations.json"
        with contextlib.suppress(OSError):
            changed_at = path.stat().st_mtime
            if changed_at != self._evaluated_at:
                self._evaluated_at = changed_at
                rows = _json_of(path)
                for row in rows if isinstance(rows, list) else ():
                    with contextlib.suppress(
                        KeyError, TypeError, ValueError, AttributeError, ArithmeticError
                    ):  # a row of another version
                        self._view.evaluated(row)


class AttachedSource:
    """Asks the run over Ray Client."""

    def __init__(self, run: AttachedRun) -> None:
        self._run = run
        self._view = RunView(run.name, run.config)
        self._newest: dict[str, Any] | None = None

    def look(self) -> RunView:
        from cluster.console import AwayError
        from cluster.runtime.ray_session import ClusterError

        try:
            for line in self._new():
                self._view.take(line)
            self._view.progress = self._run.status().progress
        except AwayError:
            if self._view.progress is None:  # it has not been reached yet
                raise
        except ClusterError as error:
            self._view.end = str(error)
        except ConnectionError:
            self._view.end = "the cluster no longer answers"
        return self._view

    def _new(self) -> Iterator[dict[str, Any]]:
        """First the last lines of each kind; later the lines after the newest one that was seen."""
        if self._newest is None:
            lines = [line for kind in KINDS for line in self._run.metrics(kind, 400)]
            lines.sort(key=lambda line: line["time"])
        else:
            lines = self._run.metrics(n=200)
            if self._newest in lines:
                lines = lines[lines.index(self._newest) + 1 :]
        self._newest = lines[-1] if lines else self._newest
        yield from lines


Source: TypeAlias = FolderSource | AttachedSource  # of the view of a run


def watch(source: Source, console: Console, once: bool) -> None:
    """Shows the run until it ends or Ctrl-C is pressed; with `once`, one frame. Without a terminal: a frame, then a
    line from time to time, and a frame at the end."""
    view = source.look()
    with contextlib.suppress(KeyboardInterrupt):
        if not once and view.end is None:
            (_watch_live if console.is_terminal else _watch_in_lines)(source, console)
    for line in _lines(source.look(), console):
        console.print(line)


def _watch_live(source: Source, console: Console) -> None:
    with Live(console=console, screen=True, auto_refresh=False) as live:
        while (view := source.look()).end is None:
            live.update(Group(*_lines(view, console)), refresh=True)
            time.sleep(LOOK_EVERY_S)


def _watch_in_lines(source: Source, console: Console) -> None:
    for line in _lines(source.look(), console):
        console.print(line)
    said = newest = None
    while (view := source.look()).end is None:
        now = time.monotonic()
        if view.newest != newest and (said is None or now - said > PLAIN_EVERY_S):
            said, newest = now, view.newest
            console.print(Text(headline(view, time.time())), soft_wrap=True)
        time.sleep(LOOK_EVERY_S)


def _lines(view: RunView, console: Console) -> list[Text]:
    width, height = console.size
    lines = frame(view, width, height if console.is_terminal else PLAIN_HEIGHT, time.time())
    if not console.encoding.lower().startswith("utf"):
        for line in lines:
            line.plain = line.plain.translate(ASCII)
    return lines


def _config_of(folder: Path) -> RunConfig | None:
    """The run's configuration; None if it cannot be read, for example because another version of spag_ray wrote it."""
    with contextlib.suppress(OSError, SpagError):
        return parse_config(read_settings(folder / "config.yaml"), str(folder))
    return None


def _json_of(path: Path) -> Any:
    """The content of a JSON file; None if it is missing or incomplete."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None

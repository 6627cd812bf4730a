"""`spag-ray watch`: a live view of a run, from the files of its folder or over Ray Client; it never changes the run.

folder  metrics.jsonl (its newest lines), evaluations.json, ended.json: beside any run, wherever the folder is seen
ray://  lines of metrics.jsonl, and the run's own words: where it is in a stage, what it has noted
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Protocol

import yaml
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from cluster.monitor.frame import frame, headline
from cluster.monitor.run_view import KINDS, RunView
from cluster.monitor.terminal import ASCII
from cluster.types import Progress
from spag_ray.config.loading import parse_config
from spag_ray.config.run import RunConfig
from spag_ray.errors import InputError, SpagError
from spag_ray.results.metric_lines import MetricLines

LOOK_EVERY_S = 1.0
PLAIN_EVERY_S = 15.0
PLAIN_HEIGHT = 40  # of a frame where there is no terminal


class Source(Protocol):
    """A run that is looked at."""

    def look(self) -> RunView:
        """As it is now; the same view each time, brought up to date. It has an `end` once the run has."""
        ...


class FolderSource:
    """Reads files alone. Raises InputError for a folder that is none of a run."""

    def __init__(self, folder: Path) -> None:
        if not (folder / "config.yaml").is_file():
            raise InputError(f"{folder}: no run there (no config.yaml); name a run's folder, or ray://HEAD:10001")
        self._folder = folder
        self._lines = MetricLines(folder / "metrics.jsonl")
        self._view = RunView(folder.resolve().name, _config_of(folder))
        self._evaluated_at = 0.0

    def look(self) -> RunView:
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
                    ):  # of another version
                        self._view.evaluated(row)


class Shown(Protocol):
    """What a session's status has."""

    @property
    def progress(self) -> Progress: ...


class Attached(Protocol):
    """A run as a session has it (console.AttachedRun)."""

    name: str

    @property
    def config(self) -> RunConfig: ...
    def status(self) -> Shown: ...
    def metrics(self, kind: str | None = None, n: int = 100) -> list[dict[str, Any]]: ...


class AttachedSource:
    """Asks the run over Ray Client."""

    def __init__(self, run: Attached) -> None:
        self._run = run
        self._view = RunView(run.name, run.config)
        self._newest: dict[str, Any] | None = None

    def look(self) -> RunView:
        from cluster.runtime.ray_session import ClusterError

        try:
            for line in self._new():
                self._view.take(line)
            self._view.progress = self._run.status().progress
        except ClusterError:
            self._view.end = "the run has ended; its folder says how"
        except ConnectionError:
            self._view.end = "the cluster does not answer any more"
        return self._view

    def _new(self) -> Iterator[dict[str, Any]]:
        """At first the last lines of each kind; then those after the newest that was seen."""
        if self._newest is None:
            lines = [line for kind in KINDS for line in self._run.metrics(kind, 400)]
            lines.sort(key=lambda line: line["time"])
        else:
            lines = self._run.metrics(n=200)
            if self._newest in lines:
                lines = lines[lines.index(self._newest) + 1 :]
        self._newest = lines[-1] if lines else self._newest
        yield from lines


def watch(source: Source, console: Console, once: bool) -> None:
    """Until the run ends, or Ctrl-C; with `once`, one frame. Without a terminal: a frame, a line now and then, and a
    frame at the end."""
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
    """None for one of another version of spag_ray."""
    with contextlib.suppress(OSError, UnicodeDecodeError, yaml.YAMLError, SpagError):
        return parse_config(yaml.safe_load((folder / "config.yaml").read_text(encoding="utf-8")), str(folder))
    return None


def _json_of(path: Path) -> Any:
    """None where it is not there, or not whole."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        return json.loads(path.read_text(encoding="utf-8"))
    return None

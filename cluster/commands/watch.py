"""`spag-ray watch`: a live view of a run; monitor/watch.py draws it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from cluster.monitor.run_view import KINDS, RunView
from cluster.monitor.watch import FolderSource, watch
from spag_ray.host.addresses import Form, check_address, looks_like_address

if TYPE_CHECKING:  # imports Ray
    from cluster.console import AttachedRun


def run_watch(target: str, run: str | None, once: bool, console: Console) -> None:
    """`spag-ray watch`: `target` is a run's folder, or ray://HOST:PORT with the run's name in `run`."""
    if Path(target).exists() or not looks_like_address(target):
        watch(FolderSource(Path(target)), console, once)
        return
    check_address(target, Form.SESSION, where="watch")
    from cluster.console import attach, session

    with session(target):
        watch(AttachedSource(attach(run=run)), console, once)


class AttachedSource:
    """Asks the run over Ray Client."""

    def __init__(self, run: AttachedRun) -> None:
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

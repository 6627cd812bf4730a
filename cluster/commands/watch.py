"""`spag-ray watch`: a live view of a run; monitor/watch.py draws it."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cluster.monitor.watch import AttachedSource, FolderSource, watch
from spag_ray.host.addresses import Form, check_address, looks_like_address


def run_watch(target: str, run: str | None, once: bool, console: Console) -> None:
    """`spag-ray watch`: `target` is a run's folder, or ray://HOST:PORT with the run's name in `run`."""
    if Path(target).exists() or not looks_like_address(target):
        watch(FolderSource(Path(target)), console, once)
        return
    check_address(target, Form.SESSION, where="watch")
    from cluster.console import attach, session

    with session(target):
        watch(AttachedSource(attach(run=run)), console, once)

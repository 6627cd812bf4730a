"""`spag-ray dashboard`: the Grafana dashboard as a file."""

from __future__ import annotations

from pathlib import Path

from rich.console import Console

from cluster.runtime.output_files import refuse_existing
from cluster.tracking.grafana import as_text
from spag_ray.errors import InputError


def write_dashboard(out: Path, console: Console) -> None:
    """`spag-ray dashboard`."""
    refuse_existing(out)
    text = as_text()
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise InputError(f"{out} cannot be written: {error.strerror}; choose another place") from error
    console.print(f"dashboard in {out}: in Grafana, Dashboards > New > Import", soft_wrap=True)

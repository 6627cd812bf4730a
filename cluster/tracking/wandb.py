"""A run on Weights & Biases, if configured: needs `tracking.wandb` in the configuration, and wandb installed.

    tracking: {wandb: {project: taboo}}                    # offline: RUN_DIR/wandb, upload it with `wandb sync`
    tracking: {wandb: {project: taboo, mode: online}}      # uploaded during the run

W&B receives the curves of curves.py and config.yaml. It does not receive code, the machine's name and load, or printed
output. A resumed run continues the same W&B run; one that is resumed in a copy of its folder has its own.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from cluster.runtime.output_files import label_of
from spag_ray.config.loading import shown_config
from spag_ray.config.parts import TrackingConfig, WandbConfig
from spag_ray.errors import ConfigError
from spag_ray.host.whole_files import write_atomically
from spag_ray.results.curves import Points

FINISH_WITHIN_S = 60.0


def check_tracking(config: TrackingConfig) -> None:
    """Raises ConfigError if W&B is configured but not installed."""
    if config.wandb is not None and importlib.util.find_spec("wandb") is None:
        raise ConfigError(
            "tracking.wandb asks for Weights & Biases, but wandb is not installed here; pip install wandb, or leave "
            "tracking.wandb out"
        )


class WandbRun:
    """`write` passes the points on and returns; wandb's own process writes or uploads them. Raises ConnectionError if
    that fails, also at the start: without a login, or without a network."""

    def __init__(self, folder: Path, config: WandbConfig) -> None:
        os.environ["WANDB_ERROR_REPORTING"] = "false"  # read when wandb is imported
        try:
            import wandb
        except ImportError as error:
            raise ConnectionError(f"wandb is not installed on the node of the run ({error})") from error
        self._error = wandb.Error
        self._named: set[str] = set()
        settings = wandb.Settings(
            console="off",
            silent=True,
            disable_git=True,
            disable_code=True,
            disable_job_creation=True,
            x_disable_stats=True,
            x_disable_meta=True,
            x_disable_machine_info=True,
            x_save_requirements=False,
            init_timeout=30,
        )
        with self._said():
            self._run: Any = wandb.init(
                project=config.project,
                name=label_of(folder),
                id=_id(folder),
                resume="allow",
                dir=str(folder),
                mode=config.mode,
                config=shown_config(folder),
                settings=settings,
            )

    def write(self, points: Points) -> None:
        """Numbers only; text stays in metrics.jsonl."""
        values = {name: value for name, value in points.values.items() if not isinstance(value, str)}
        if not values:
            return
        with self._said():
            for name in values.keys() - self._named:
                self._run.define_metric(name, step_metric=points.axis)
                self._named.add(name)
            self._run.log({**values, points.axis: points.x})

    def close(self) -> None:
        """Waits for wandb's own process FINISH_WITHIN_S at most: its upload has no bound of its own."""
        failed: list[Exception] = []

        def finish() -> None:
            try:
                self._run.finish()
            except Exception as error:
                failed.append(error)

        ending = threading.Thread(target=finish, name="wandb", daemon=True)
        ending.start()
        ending.join(FINISH_WITHIN_S)
        if ending.is_alive():
            _end_service()
            raise ConnectionError(f"not all was written within {FINISH_WITHIN_S:g} s; upload it with `wandb sync`")
        if failed:
            raise ConnectionError(" ".join(str(failed[0]).split())) from failed[0]

    @contextlib.contextmanager
    def _said(self) -> Iterator[None]:
        try:
            yield
        except self._error as error:
            raise ConnectionError(" ".join(str(error).split())) from error


def _end_service() -> None:
    """Kill wandb's process of this one: wandb would wait for it when this process exits, without a bound."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if child.name().startswith("wandb-core"):
                child.kill()


def _id(folder: Path) -> str:
    """The id of a run, the same in every attempt. It is unique, because a project may have several folders of one
    name. A run folder that was moved keeps it; a copy gets its own while the folder that had the id is in its place:
    two runs would be drawn as one."""
    path = folder / "wandb" / "id.txt"
    path.parent.mkdir(exist_ok=True)
    own, before = _id_of(path) if path.exists() else ("", "")
    there, is_copy = Path(before) / "wandb" / "id.txt", False
    with contextlib.suppress(OSError):  # it is gone, or somebody else's
        is_copy = bool(before) and not there.samefile(path) and _id_of(there)[0] == own
    if not own or is_copy:
        own = secrets.token_hex(8)
    if is_copy or before != str(folder):
        write_atomically(path, f"{own}\n{folder}\n")
    return own


def _id_of(path: Path) -> tuple[str, str]:
    """(an id, the folder that had it when it was written)"""
    own, _, before = path.read_text(encoding="utf-8").strip().partition("\n")
    return own, before

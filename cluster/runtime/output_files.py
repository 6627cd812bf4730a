"""Files that a command writes, without overwriting any."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from spag_ray.errors import InputError


def free_name(path: Path) -> Path:
    """The path, or the next one that does not exist: NAME-2, NAME-3."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def label_of(folder: Path) -> str:
    """What a run is called in Prometheus and W&B: its folder's name, with that of the folder above where it is a seed
    (RUN_DIR/seed-3), because all experiments have those.

    >>> label_of(Path("runs/kuhn-20261128/seed-3")), label_of(Path("runs/kuhn-20261128"))
    ('kuhn-20261128-seed-3', 'kuhn-20261128')
    """
    is_seed = re.fullmatch(r"seed-\d+", folder.name) is not None
    return f"{folder.resolve().parent.name}-{folder.name}" if is_seed else folder.name


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise InputError(f"{path} exists; nothing is overwritten: choose another name, or move it away")

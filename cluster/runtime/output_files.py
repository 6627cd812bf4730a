"""Files that a command writes, without overwriting any."""

from __future__ import annotations

import itertools
from pathlib import Path

from spag_ray.errors import InputError


def free_name(path: Path) -> Path:
    """The path, or the next one that does not exist: NAME-2, NAME-3."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def refuse_existing(path: Path) -> None:
    if path.exists():
        raise InputError(f"{path} exists; nothing is overwritten: choose another name, or move it away")

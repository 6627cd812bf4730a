"""Names of a run's folder and of what a command writes."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from pathlib import Path


def free_name(path: Path) -> Path:
    """The path, or the next one that does not exist: NAME-2, NAME-3."""
    others = (path.with_name(f"{path.name}-{number}") for number in itertools.count(2))
    return next(each for each in itertools.chain([path], others) if not each.exists())


def folder_beside(out: Path) -> Path:
    """The run folder of a command that writes `out`: a new one each time, for an interrupted command leaves its own."""
    return free_name(out.with_name(f"{out.name}.run"))


def label_of(folder: Path) -> str:
    """What a run is called in Prometheus and W&B: its folder's name, with that of the folder above where it is a seed
    (RUN_DIR/seed-3), because all experiments have those.

    >>> label_of(Path("runs/kuhn-20261128/seed-3")), label_of(Path("runs/kuhn-20261128"))
    ('kuhn-20261128-seed-3', 'kuhn-20261128')
    """
    is_seed = re.fullmatch(r"seed-\d+", folder.name) is not None
    above = folder if folder.is_absolute() else folder.resolve()  # a link above has its own name everywhere
    return f"{above.parent.name}-{folder.name}" if is_seed else folder.name


def told_apart_paths(paths: Sequence[Path]) -> list[str]:
    """The paths without the folders that all of them begin with.

    >>> told_apart_paths([Path("runs/a/seed-1"), Path("runs/a/seed-2")])
    ['seed-1', 'seed-2']
    """
    parts = [path.parts for path in paths]
    same = 0
    while len(paths) > 1 and all(len(each) > same + 1 for each in parts) and len({each[same] for each in parts}) == 1:
        same += 1
    return [str(Path(*each[same:])) for each in parts]

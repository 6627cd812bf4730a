"""Which files of a run's episodes/ hold the games of a stage."""

from __future__ import annotations

import re
from pathlib import Path

from spag_ray.stages import Stage

_SEGMENT = re.compile(r"(.+?)(?:\.\d+)?\.log", re.DOTALL)


def stage_of(segment: Path) -> Stage:
    """The stage whose log, NAME.log, NAME.1.log ..., this file is a segment of."""
    found = _SEGMENT.fullmatch(segment.name)
    return Stage.parse(segment.name if found is None else found[1])


def name_in(folder: Path, stage: Stage) -> str:
    """The name of a stage's log in this folder: the former version's name if only that log exists.

    The former name is not used if it may be another match's, because it is unique only for a run's own stages.
    """
    former, name = stage.former_name, str(stage)
    is_former = Stage.parse(former) == stage and (folder / f"{former}.log").exists()
    return former if is_former and not (folder / f"{name}.log").exists() else name

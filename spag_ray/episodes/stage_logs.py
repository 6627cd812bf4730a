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
    """The name that a stage's games have in this folder: a former version's, where that has begun to play it.

    Not where the former name may be another match's: only a run's own stages are told apart in it.
    """
    former, name = stage.former_name, str(stage)
    is_former = Stage.parse(former) == stage and (folder / f"{former}.log").exists()
    return former if is_former and not (folder / f"{name}.log").exists() else name

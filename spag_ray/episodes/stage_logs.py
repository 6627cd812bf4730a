"""Which files of a run's episodes/ hold the games of a stage, and the games in them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from spag_ray.episodes.episode import Episode
from spag_ray.episodes.log import LogFaults, scan, segments
from spag_ray.episodes.wire import decode
from spag_ray.errors import InputError
from spag_ray.stages import Stage, order_of

_SEGMENT = re.compile(r"(.+?)(?:\.\d+)?\.log", re.DOTALL)
_LATER = re.compile(r"(.+)\.\d+\.log")


def stage_of(segment: Path) -> Stage:
    """The stage whose log, NAME.log, NAME.1.log ..., this file is a segment of."""
    found = _SEGMENT.fullmatch(segment.name)
    return Stage.parse(segment.name if found is None else found[1])


def stage_logs(folder: Path) -> dict[str, Path]:
    """{stage: the first segment of its log}, in the order of the run."""
    names = {path.name for path in folder.glob("*.log")}
    stages = [
        name.removesuffix(".log")
        for name in names
        if (segment := _LATER.fullmatch(name)) is None or f"{segment[1]}.log" not in names
    ]
    return {stage: folder / f"{stage}.log" for stage in sorted(stages, key=order_of)}


def read_stage(path: Path, faults: LogFaults) -> Iterator[tuple[int, Episode]]:
    """(place of its record, episode) for each episode of a log, one at a time. What cannot be read is counted."""
    for place, record in enumerate(stage_records(path, faults)):
        try:
            episode = decode(record)
        except InputError:
            faults.num_refused += 1
            continue
        yield place, episode


def stage_records(path: Path, faults: LogFaults) -> Iterator[bytes]:
    """Every whole record of a log; adds to `faults` and logs nothing."""
    for segment in segments(path):
        yield from (data for _, data in scan(segment, faults))

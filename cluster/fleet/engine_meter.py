"""Asks the engines what they measured: lines of kind `engine`, and how long they had no turn to answer."""

from __future__ import annotations

import logging

import ray

from cluster.fleet.roster import Roster
from cluster.tracking.recorder import Recorder
from spag_ray.results.lines import EngineFigures, EngineLine

log = logging.getLogger("spag_ray.fleet")

WITHIN_S = 5.0  # an engine that is busy with a load answers late, and is left out


class EngineMeter:
    """The meter of one run; for the loop's thread. Engines count from one `take` to the next."""

    def __init__(self, roster: Roster, recorder: Recorder) -> None:
        self._roster = roster
        self._recorder = recorder
        self._seconds = self._busy_s = 0.0

    def take(self, stage: str | None = None, version: int = 0) -> None:
        """What all engines measured since the last call. With a `stage`, a line for each of them."""
        calls = {engine.handle.figures.remote(): engine.name for engine in self._roster.up()}
        answered, late = ray.wait(list(calls), num_returns=len(calls), timeout=WITHIN_S) if calls else ([], [])
        if late:
            log.info("no figures within %g s from %s", WITHIN_S, ", ".join(calls[each] for each in late))
        for call in answered:
            try:
                found: EngineFigures = ray.get(call, timeout=WITHIN_S)
            except ray.exceptions.RayError as error:  # the heartbeats find an engine that is gone
                log.info("no figures from %s: %s", calls[call], str(error).partition("\n")[0])
                continue
            if found.seconds and found.busy_share is not None:
                self._seconds += found.seconds
                self._busy_s += found.seconds * found.busy_share
            if stage is not None:
                self._recorder.record(EngineLine(stage, calls[call], version, found))

    def idle_share(self) -> float | None:
        """The share of time since the last call in which an engine had nothing to answer, the mean over engines; None
        if none has said so."""
        seconds, busy_s = self._seconds, self._busy_s
        self._seconds = self._busy_s = 0.0
        return 1 - busy_s / seconds if seconds else None

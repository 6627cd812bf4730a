"""What every schedule needs to play."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cluster.buffer.buffer_client import Buffer
from cluster.buffer.buffer_metrics import BufferMetrics
from cluster.fleet.elastic_engines import ElasticEngines
from cluster.fleet.fleet import Fleet
from cluster.monitor.status_board import StatusBoard
from cluster.rollout.arenas import Arenas
from cluster.tracking.recorder import Recorder
from spag_ray.config.run import RunConfig


@dataclass(frozen=True)
class Playground:
    """`poll_health` is called while waiting for games, and raises what ends the play. `versions`: {policy: the
    version of its weights that is played}."""

    config: RunConfig
    folder: Path
    fleet: Fleet
    arenas: Arenas
    buffer: Buffer
    buffer_metrics: BufferMetrics
    recorder: Recorder
    status: StatusBoard
    poll_health: Callable[[], None]
    versions: Callable[[], dict[str, int]]
    elastic: ElasticEngines

    @property
    def version(self) -> int:
        """The first policy's version, which stamps the lines of metrics.jsonl."""
        return next(iter(self.versions().values()), 0)

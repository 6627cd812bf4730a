"""What every schedule needs to play."""

from __future__ import annotations

import math
from collections.abc import Callable, Container
from dataclasses import dataclass, field
from pathlib import Path

from actors.arena import LISTENER
from cluster.buffer.buffer_client import Buffer
from cluster.buffer.buffer_metrics import BufferMetrics
from cluster.fleet.elastic_engines import ElasticEngines
from cluster.fleet.engine_meter import EngineMeter
from cluster.fleet.fleet import Fleet
from cluster.monitor.status_board import StatusBoard
from cluster.planning.placement import num_on_one_gpu
from cluster.rollout.arenas import Arenas
from cluster.tracking.recorder import Recorder
from cluster.tracking.time_split import TimeSplit
from spag_ray.config.parts import Payoffs
from spag_ray.config.run import RunConfig
from spag_ray.stages import Stage


@dataclass(frozen=True)
class Playground:
    """`poll_health` is called while waiting for games, and raises what ends the play. `versions`: {policy: the
    version of its weights that is played}. `split`: what the loop waits for."""

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
    meter: EngineMeter
    split: TimeSplit = field(default_factory=TimeSplit)

    @property
    def version(self) -> int:
        """The first policy's version, which stamps the lines of metrics.jsonl."""
        return next(iter(self.versions().values()), 0)

    def payoffs_of(self, stage: Stage) -> dict[str, Payoffs]:
        """What the ends of each game pay in a stage, by its full name."""
        return {each.game.full_name: each.payoffs_of(stage) for each in self.config.each_game}

    @property
    def several_guesses(self) -> set[str]:
        """Games whose defender may guess more than once, by their full names."""
        return {each.full_name for each in self.config.games if each.max_guesses > 1}

    def heard(self, players: Container[str]) -> frozenset[str]:
        """The games, by their full names, that a listener among these players of an arena scores."""
        if LISTENER not in players:
            return frozenset()
        return frozenset(each.game.full_name for each in self.config.each_game if each.objective.information_gain)

    @property
    def num_engine_gpus(self) -> float:
        """The GPUs of the engines that run now; 0 on CPUs. An engine that takes turns with a learner (placement:
        colocated) has its GPUs to itself while it plays, whatever share Ray reserves for it, or shares one with as many
        engines as Ray puts there."""
        share, num_up = self.config.engine.num_gpus, len(self.fleet.roster.up())
        if self.config.placement != "colocated":
            return share * num_up
        return math.ceil(share) * math.ceil(num_up / num_on_one_gpu(share))

    def tokens_per_s_per_gpu(self, num_tokens: int, seconds: float) -> float | None:
        """Of self-play, for the lines of metrics.jsonl; None without GPUs."""
        return round(num_tokens / seconds / gpus, 1) if (gpus := self.num_engine_gpus) else None

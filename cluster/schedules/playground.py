"""What every schedule needs to play."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from actors.arena import LISTENER
from cluster.buffer.buffer_actor import Buffer
from cluster.buffer.buffer_metrics import BufferMetrics
from cluster.fleet.elastic_engines import ElasticEngines
from cluster.fleet.engine_meter import EngineMeter
from cluster.fleet.fleet import Fleet
from cluster.monitor.status_board import StatusBoard
from cluster.planning.placement import num_on_one_gpu
from cluster.rollout.arenas import Arenas
from cluster.tracking.recorder import Recorder
from cluster.tracking.time_split import TimeSplit
from cluster.types import Seat, engine_players
from spag_ray.config.run import RunConfig
from spag_ray.episodes.episode import Episode
from spag_ray.results.game_figures import game_figures
from spag_ray.results.lines import GameFigures
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

    def figures(self, stage: Stage, episodes: Sequence[Episode], seats: Mapping[str, Seat]) -> GameFigures:
        """Of games of a stage that these players of an arena have played, for lines of metrics.jsonl."""
        games = self.config.each_game
        heard = [each for each in games if each.objective.information_gain and LISTENER in seats]
        return game_figures(
            episodes,
            {each.game.full_name: each.payoffs_of(stage) for each in games},
            engine_players(seats.values()),
            several_guesses={each.game.full_name for each in games if each.game.max_guesses > 1},
            heard={each.game.full_name for each in heard},
        )

    def tokens_per_s_per_gpu(self, num_tokens: int, seconds: float) -> float | None:
        """Of self-play, for the lines of metrics.jsonl; None without GPUs. An engine that takes turns with a learner
        (placement: colocated) has its GPUs to itself while it plays, whatever share Ray reserves for it, or shares one
        with as many engines as Ray puts there."""
        share, num_up = self.config.engine.num_gpus, len(self.fleet.roster.up())
        num_gpus = share * num_up
        if self.config.placement == "colocated":
            num_gpus = math.ceil(share) * math.ceil(num_up / num_on_one_gpu(share))
        return round(num_tokens / seconds / num_gpus, 1) if num_gpus else None

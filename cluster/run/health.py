"""Health checks of everything that a run owns, made while it waits for games."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from cluster.buffer.buffer_actor import BufferHealth
from cluster.buffer.buffer_client import Buffer
from cluster.buffer.buffer_metrics import BufferMetrics
from cluster.fleet.fleet import Fleet
from cluster.fleet.publisher import Publisher
from cluster.learning.learning_policy import LearningPolicy
from cluster.run.control import RunControl
from cluster.runtime.ray_session import ClusterError
from cluster.supervision.actor_watch import ActorWatch
from cluster.supervision.restart_budget import RestartBudget
from cluster.tracking.recorder import Recorder
from cluster.tracking.time_split import TimeSplit
from spag_ray.results.lines import LogDamageLine


@dataclass(kw_only=True)
class Health:
    """The health checks of one run. `watch` covers its arenas and its buffer; engines have heartbeats of their own."""

    control: RunControl
    policies: Sequence[LearningPolicy]
    fleet: Fleet
    publisher: Publisher
    buffer: Buffer
    watch: ActorWatch
    buffer_metrics: BufferMetrics
    restarts: RestartBudget
    recorder: Recorder
    split: TimeSplit = field(default_factory=TimeSplit)
    _last: BufferHealth | None = None

    def poll(self) -> None:
        """Raises what the watches could not repair, LearnersLostError, and StopRequestedError. Also sends weights to
        engines that wait for them, where it can."""
        self.control.check_stop()
        self.fleet.tasks.check()
        self.watch.check()
        self._poll_buffer()
        self.buffer_metrics.sample()
        for policy in self.policies:
            policy.check_learners()
        with self.split.phase("sync"):
            self.publisher.admit()

    def _poll_buffer(self) -> None:
        """Ray restarts the buffer, and the buffer rereads its logs; the restart and any damage are recorded here."""
        before, health = self._last, self.buffer.get(self.buffer.handle.health.remote())
        self._last = health
        if health.is_restarted if before is None else before.pid != health.pid:
            ended = ClusterError("its process ended, and Ray has started another")
            self.restarts.count("buffer", self.watch.reason("buffer") or ended)
        for stage, damage in health.damage.items():
            if before is None or before.damage.get(stage) != damage:
                self.recorder.record(LogDamageLine(stage, damage))

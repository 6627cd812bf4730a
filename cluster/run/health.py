"""Health checks of everything that a run owns, made while it waits for games."""

from __future__ import annotations

from collections.abc import Sequence

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
from spag_ray.results.lines import LogDamageLine


class Health:
    """The health checks of one run. `watch` covers its arenas and its buffer; engines have heartbeats of their own."""

    def __init__(
        self,
        control: RunControl,
        policies: Sequence[LearningPolicy],
        fleet: Fleet,
        publisher: Publisher,
        buffer: Buffer,
        watch: ActorWatch,
        buffer_metrics: BufferMetrics,
        restarts: RestartBudget,
        recorder: Recorder,
    ) -> None:
        self._control = control
        self._policies = policies
        self._fleet = fleet
        self._publisher = publisher
        self._buffer = buffer
        self._watch = watch
        self._buffer_metrics = buffer_metrics
        self._restarts = restarts
        self._recorder = recorder
        self._last: BufferHealth | None = None

    def poll(self) -> None:
        """Raises what the watches could not repair, LearnersLostError, and StopRequestedError. Also sends weights to
        engines that wait for them, where it can."""
        self._control.check_stop()
        self._fleet.tasks.check()
        self._watch.check()
        self._poll_buffer()
        self._buffer_metrics.look()
        for policy in self._policies:
            policy.check_learners()
        self._publisher.admit()

    def _poll_buffer(self) -> None:
        """Ray restarts the buffer, and the buffer rereads its logs; the restart and any damage are recorded here."""
        before, health = self._last, self._buffer.get(self._buffer.handle.health.remote())
        self._last = health
        if health.is_restarted if before is None else before.pid != health.pid:
            ended = ClusterError("its process ended, and Ray has started another")
            self._restarts.count("buffer", self._watch.reason("buffer") or ended)
        for stage, damage in health.damage.items():
            if before is None or before.damage.get(stage) != damage:
                self._recorder.record(LogDamageLine(stage, damage))

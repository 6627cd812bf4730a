"""Channels on which learner ranks send weights to engines themselves: shared_memory, nccl, ipc.

    Run ── send(version, engines) ──> learner ranks ── weights ──> engines
                                          └─ rank 0: EngineClient ── begin, take, end ──> engines

vLLM's trainer twins (learners/transfer.py) do the sending; in rank 0's process they call EngineClient's four methods.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import ray

from cluster.arena_actor import Engine
from cluster.runtime import is_gone
from spag_ray.config import SyncConfig
from spag_ray.errors import LearnersLostError, WeightSyncError

if TYPE_CHECKING:
    from cluster.learner_group import LearnerGroup


@dataclass
class SendReport:
    """`lost`: names of the engines that died meanwhile. `num_bytes`: what went to each of the others."""

    lost: list[str]
    num_bytes: int


class EngineClient:
    """vLLM's VLLMWeightSyncClient over several engines. One that dies is left out; one that refuses is an error.

    `workers_per_engine`: each engine's ranks in an NCCL group, after the sender's rank 0.
    """

    def __init__(self, engines: Sequence[Engine], workers_per_engine: int, in_flight: bool, timeout_s: float) -> None:
        self.version = 0
        self.lost: list[str] = []
        self._engines = list(engines)
        self._workers_per_engine = workers_per_engine
        self._in_flight = in_flight
        self._timeout_s = timeout_s

    @property
    def world_size(self) -> int:
        return 1 + len(self._engines) * self._workers_per_engine

    def init_weight_transfer_engine(self, init_info: dict[str, Any]) -> None:
        def own(index: int) -> dict[str, Any]:
            if "rank_offset" not in init_info:
                return init_info
            return init_info | {"rank_offset": 1 + index * self._workers_per_engine}

        self._all(lambda index, engine: engine.handle.open_channel.remote(own(index)))

    def start_weight_update(self) -> None:
        self._all(lambda _, engine: engine.handle.begin_update.remote(self._in_flight))

    def update_weights(self, update_info: Any) -> None:
        self._all(lambda _, engine: engine.handle.take_update.remote(update_info))

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all(lambda _, engine: engine.handle.end_update.remote(self.version))

    def _all(self, call: Callable[[int, Engine], ray.ObjectRef]) -> None:
        engines = tuple(self._engines)
        refs = [call(index, engine) for index, engine in enumerate(engines)]
        for engine in gather(engines, refs, self._timeout_s, f"version {self.version} was not taken").lost:
            self.lost.append(engine.name)
            self._engines.remove(engine)


@dataclass
class Answers:
    """What each engine that lives has answered, in the order of the engines; and those that do not."""

    found: dict[Engine, Any]
    lost: list[Engine]


def gather(engines: Sequence[Engine], refs: Sequence[ray.ObjectRef], timeout_s: float, failure: str) -> Answers:
    """One call of each engine. Those that died, or are stuck, are killed and told apart.

    Raises WeightSyncError, `failure` and which and why, after killing those that could not do it.
    """
    answers = Answers({}, [])
    failed = []
    for engine, ref in zip(engines, refs, strict=True):
        try:
            answers.found[engine] = ray.get(ref, timeout=timeout_s)
        except ray.exceptions.RayError as error:
            ray.kill(engine.handle)
            if is_gone(error):
                answers.lost.append(engine)
            else:
                cause = getattr(error, "cause", None) or error
                failed.append(f"{engine.name}: {str(cause).splitlines()[0]}")
    if failed:
        raise WeightSyncError(f"{failure} by {'; '.join(failed)}; these engines were stopped")
    return answers


class DirectChannel:
    """The learner ranks' end of a channel: opened for the engines that there are, again when they have changed."""

    def __init__(self, learners: LearnerGroup, config: SyncConfig, workers_per_engine: int) -> None:
        self._learners = learners
        self._config = config
        self._workers_per_engine = workers_per_engine
        self._connected: list[str] = []

    def send(self, version: int, engines: Sequence[Engine]) -> tuple[int, list[Engine]]:
        """The learner's weights as they are now to every engine, as `version`; returns the bytes that went to each, and
        the engines that were found dead.

        Raises WeightSyncError, after killing the engines that refused; LearnersLostError, after killing those that a
        learner rank was sending to when it died: they would wait for the rest of it.
        """
        versions = [engine.handle.played_version.remote() for engine in engines]
        answers = gather(engines, versions, self._config.timeout_s, "the version that is played was not told")
        alive, lost = list(answers.found), answers.lost
        names = [engine.name for engine in alive]
        if not alive:
            return 0, lost
        try:
            if names != self._connected:
                in_flight = self._config.update == "in_flight"
                self._learners.open_channel(
                    self._config.channel, alive, self._workers_per_engine, in_flight, self._config.timeout_s
                )
                self._connected = names
            report = self._learners.send(version)
        except LearnersLostError:
            for engine in alive:
                ray.kill(engine.handle)
            raise
        return report.num_bytes, lost + [engine for engine in alive if engine.name in report.lost]

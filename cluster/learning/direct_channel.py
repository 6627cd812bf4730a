"""Learner ranks send weights to engines themselves, on a direct channel (spag_ray/channels/).

    Run ── send(version, engines) ──> learner ranks ── weights ──> engines
                                          └─ rank 0: EngineClient ── begin, take, end ──> engines

The channel's Sender does the sending; in rank 0's process it calls EngineClient's four methods. This file is the same
for every channel.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol

import ray

from cluster.handles import R, Ref
from cluster.runtime.locks import check_may_wait
from cluster.runtime.ray_session import Retry, first_line, is_gone, is_unavailable
from cluster.types import Engine
from spag_ray.channels.base import ChannelBrokenError
from spag_ray.config.run import RunConfig
from spag_ray.errors import LearnersLostError, WeightSyncError

# For the answers of engines that wait, inside of NCCL, for one that is gone. Only one that was ready just then has one.
AFTER_A_LOSS_S = 5.0


@dataclass
class SendReport:
    """`lost`: {name: why} of the engines that were stopped. `num_bytes`: the bytes sent to each of the others. If not
    `is_sent`, the channel broke: what an engine has taken may be incomplete."""

    lost: dict[str, str]
    num_bytes: int
    is_sent: bool = True


class EngineClient:
    """vLLM's VLLMWeightSyncClient over several engines. An engine that dies or refuses is left out. Raises
    WeightSyncError when none is left and one refused, ChannelBrokenError when the others cannot take the version
    without an engine that was left out.

    Each engine's ranks in an NCCL group, one for each of its GPUs, come after the sender's rank 0. `abort` is the
    sender's: called when an engine is left out for which it may wait.
    """

    def __init__(self, engines: Sequence[Engine], config: RunConfig) -> None:
        self.version = 0
        self.lost: dict[str, str] = {}
        self.timeout_s = config.sync.timeout_s
        self.abort: Callable[[], bool] = lambda: False
        self._answers: Answers[None] = Answers()
        self._calling = threading.Lock()
        self._engines = list(engines)
        self._workers_per_engine = config.engine.tensor_parallel_size
        self._in_flight = config.sync.update == "in_flight"
        self._begin_within_s = config.load_within_s(self._in_flight)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_calling"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """In rank 0's process, to which it is sent before its first call."""
        vars(self).update(state, _calling=threading.Lock())

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
        self._all(lambda _, engine: engine.handle.begin_update.remote(self._in_flight), within_s=self._begin_within_s)

    def update_weights(self, update_info: Any) -> None:
        self._all(lambda _, engine: engine.handle.take_update.remote(update_info), is_together=True)

    def finish_weight_update(self, weight_version: str | None = None) -> None:
        self._all(lambda _, engine: engine.handle.end_update.remote(self.version), is_joint=False)

    def check(self) -> None:
        """Waits until a call is over: where a broadcast broke, vLLM's thread still makes one. `lost` is complete then.
        Raises WeightSyncError with the reasons if engines refused and none is left."""
        with self._calling:
            self._check()

    def _check(self) -> None:
        self._answers.check(f"version {self.version} was not taken by ")

    def _all(
        self,
        call: Callable[[int, Engine], Ref[None]],
        is_joint: bool = True,
        is_together: bool = False,
        within_s: float | None = None,
    ) -> None:
        """`is_joint`: the sender may take part in this call, and wait for an engine that is gone. `is_together`: so may
        the other engines, which then never answer."""
        with self._calling:
            refs = [call(index, engine) for index, engine in enumerate(self._engines)]
            until = time.monotonic() + (within_s or self.timeout_s)
            is_broken = is_together and self._is_broken_by_a_loss(refs, until)
            left_s = AFTER_A_LOSS_S if is_broken else max(0.1, until - time.monotonic())
            answers = gather(self._engines, refs, left_s, told_s=within_s or self.timeout_s)
            self._engines = list(answers.found)
            self.lost |= {engine.name: reason for engine, reason in answers.lost.items()}
            self._answers.lost |= answers.lost
            self._answers.refused += answers.refused
            self._answers.found = answers.found
            is_broken = is_broken or (is_joint and bool(answers.lost) and self.abort())
            self._check()
        if is_broken:
            raise ChannelBrokenError("; ".join(answers.lost.values()))

    def _is_broken_by_a_loss(self, refs: Sequence[Ref[None]], until: float) -> bool:
        """Wait until all have answered, or one is lost and the channel broke by that."""
        pending = list(refs)
        while pending and (left_s := until - time.monotonic()) > 0:
            done, pending = ray.wait(pending, num_returns=1, timeout=left_s)
            if any(map(_is_lost, done)) and self.abort():
                return True
        return False


def _is_lost(ref: Ref[None]) -> bool:
    try:
        ray.get(ref, timeout=0)
    except ray.exceptions.RayError as error:
        return not isinstance(error, ray.exceptions.GetTimeoutError) and (is_gone(error) or is_unavailable(error))
    return False


@dataclass
class Answers(Generic[R]):
    """The engines' answers, in their order, and why the others were stopped: they died, did not answer in time, or
    raised an error (`refused`)."""

    found: dict[Engine, R] = field(default_factory=dict)
    lost: dict[Engine, str] = field(default_factory=dict)
    refused: list[Engine] = field(default_factory=list)

    def add(self, others: Answers[Any]) -> None:
        """Add the answers of other engines."""
        self.found |= others.found
        self.lost |= others.lost
        self.refused += others.refused

    def refuse(self, engine: Engine, reason: str) -> None:
        """Stop an engine whose answer is wrong."""
        ray.kill(engine.handle)
        self.found.pop(engine, None)
        self.lost[engine] = reason
        self.refused.append(engine)

    def check(self, failure: str = "") -> None:
        """If some engines refuse, the fault is theirs, and they are replaced. If engines refused and none could do it,
        raises WeightSyncError with `failure` and the reason of each."""
        if self.refused and not self.found:
            reasons = "; ".join(self.lost[engine] for engine in self.refused)
            error = WeightSyncError(f"{failure}{reasons}; these engines were stopped")
            error.stopped = tuple(engine.name for engine in self.lost)
            raise error


def gather(
    engines: Sequence[Engine],
    refs: Sequence[Ref[R]],
    timeout_s: float,
    again: Callable[[Engine], Ref[R]] | None = None,
    told_s: float | None = None,
) -> Answers[R]:
    """Wait for one call to each engine, `timeout_s` for all. Engines that died, are stuck, or refused are killed.
    `told_s`: what they have had, if they were waited for before.

    `again` makes the call once more, to an engine that was unavailable. None: the call must not be made twice, and
    nobody knows what has become of it, so the engine is killed too.
    """
    check_may_wait()
    answers: Answers[R] = Answers()
    until = time.monotonic() + timeout_s
    is_done = set(ray.wait(list(refs), num_returns=len(refs), timeout=timeout_s)[0]) if refs else set()
    for engine, ref in zip(engines, refs, strict=True):
        if ref not in is_done:
            ray.kill(engine.handle)
            answers.lost[engine] = f"{engine.name}: no answer within {told_s or timeout_s:g} s"
            continue
        try:
            answers.found[engine] = _answer(engine, ref, until, again)
        except ray.exceptions.RayError as error:
            if is_gone(error) or is_unavailable(error):
                ray.kill(engine.handle)
                node = re.search(r"\bip: ?[\d.]+", str(error))  # by which restarts are told apart (restart_budget.py)
                answers.lost[engine] = f"{engine.name}: {first_line(error)}{f' ({node[0]})' if node else ''}"
            else:
                answers.refuse(engine, f"{engine.name}: {first_line(error)}")
    return answers


def _answer(engine: Engine, ref: Ref[R], until: float, again: Callable[[Engine], Ref[R]] | None) -> R:
    """The engine's answer to `ref`, or to one of the calls that are made again until then."""
    retry = Retry(until - time.monotonic())
    while True:
        try:
            return ray.get(ref, timeout=max(0.0, until - time.monotonic()))
        except ray.exceptions.RayError as error:
            if again is None or not is_unavailable(error) or (pause_s := retry.pause_s()) is None:
                raise
        time.sleep(pause_s)
        ref = again(engine)


class Senders(Protocol):
    """Learner ranks that send their weights themselves (LearnerGroup)."""

    def open_channel(self, channel: str, client: EngineClient) -> None: ...
    def send(self, version: int) -> SendReport: ...


class DirectChannel:
    """The learner ranks' end of a channel. It is opened for the current engines, and again when they have changed."""

    def __init__(self, learners: Senders, config: RunConfig) -> None:
        self._learners = learners
        self._config = config
        self._connected: list[str] = []

    def send(self, version: int, engines: Sequence[Engine]) -> tuple[int, Answers[int], bool]:
        """Send the learner's current weights to every engine, as `version`. Returns the bytes sent to each, which
        engines have taken them, and whether the channel held. If not, the engines' weights may be incomplete, and the
        channel is opened again for the next version.

        Raises WeightSyncError when every engine refused. Raises LearnersLostError when a learner rank died; the engines
        that it was sending to are killed first, because they would wait for the rest.
        """

        def played(engine: Engine) -> Ref[int]:
            return engine.handle.played_version.remote()

        answers = gather(engines, list(map(played, engines)), self._config.sync.timeout_s, again=played)
        alive = list(answers.found)
        names = [engine.name for engine in alive]
        if not alive:
            return 0, answers, True
        try:
            if names != self._connected:
                self._connected = []  # also if an engine refuses
                self._learners.open_channel(self._config.sync.channel, EngineClient(alive, self._config))
                self._connected = names
            report = self._learners.send(version)
        except LearnersLostError as error:
            for engine in alive:
                ray.kill(engine.handle)
            error.stopped = tuple(names)
            raise
        for engine in alive:
            if engine.name in report.lost:
                del answers.found[engine]
                answers.lost[engine] = report.lost[engine.name]
        if not report.is_sent:
            self._connected = []
        return report.num_bytes, answers, report.is_sent

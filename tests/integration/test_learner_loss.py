"""A learner rank dies while its weights are on their way: learners begin again, no engine is left halfway."""

import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
import ray

from cluster.learning.learning_policy import LearningPolicy
from cluster.tracking.recorder import Recorder
from cluster.types import Engine
from spag_ray.errors import LearnersLostError
from spag_ray.game.rules import Role
from tests.support.runs import tiny_run, wait_until_dead

pytestmark = pytest.mark.usefixtures("local_ray")
ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])  # workers do not find this file by its name


class Taker:
    """An engine that takes buckets as they come; asked for an update, it kills the one that sends it."""

    def __init__(self, sender: int) -> None:
        self._sender = sender

    async def load(self, version: int, num_tensors: int, refs: list[ray.ObjectRef], *_: Any) -> tuple[int, int]:
        for ref in refs:
            await ref
        return version, 0

    def played_version(self) -> int:
        return 0

    def open_channel(self, init_info: dict[str, Any]) -> None: ...

    def begin_update(self, in_flight: bool) -> None: ...

    def take_update(self, update: dict[str, Any]) -> None:
        os.kill(self._sender, signal.SIGKILL)
        time.sleep(60)


class NoGate:
    def drain(self, engine: Engine) -> None: ...

    def reopen(self, engine: Engine) -> None: ...


@pytest.mark.parametrize("channel", ["object_store", pytest.param("shared_memory", marks=pytest.mark.long)])
def test_learners_are_lost_and_the_engine_stops(channel: str, tiny_model: Path, words: Path, tmp_path: Path) -> None:
    config = tiny_run(tiny_model, words, sync={"channel": channel}, learner={"timeout_s": 60})
    policy = LearningPolicy("policy", tuple(Role), config, tmp_path, str(tiny_model), Recorder(tmp_path))
    policy.start_learners()
    assert policy.learners is not None
    rank: Any
    (rank,) = policy.learners._ranks
    pid = ray.get(rank.__ray_call__.remote(lambda _: os.getpid()))
    engine = Engine(ray.remote(Taker).options(num_cpus=0).remote(pid), "engine-0", "policy")
    policy.check_learners()
    if channel == "object_store":
        os.kill(pid, signal.SIGSTOP)  # so that no bucket leaves it
        policy.export()
        os.kill(pid, signal.SIGKILL)
    else:
        policy.export()
    with pytest.raises(LearnersLostError, match="a learner rank is gone"):
        policy.publish([engine], NoGate())
    assert policy.version == 0
    wait_until_dead(engine.handle.played_version)
    newcomer = Engine(ray.remote(Taker).options(num_cpus=0).remote(pid), "engine-0.2", "policy")
    assert policy.catch_up(newcomer, others_play=True) is None, "it plays from the next version on"

    def check_for_20_s() -> None:
        deadline = time.monotonic() + 20
        while time.monotonic() < deadline:
            policy.check_learners()
            time.sleep(0.1)

    with pytest.raises(LearnersLostError):
        check_for_20_s()
    policy.close_learners()
    ray.kill(newcomer.handle)
    psutil.wait_procs([process for process in psutil.Process().children() if process.pid == pid], timeout=5)

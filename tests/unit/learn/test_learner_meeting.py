"""How the ranks of a learner group meet, and how long they wait for each other."""

import os
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import ray

from cluster.learning.direct_channel import EngineClient
from cluster.learning.learner_actor import LearnerActor
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.config.run import RunConfig

JOIN = """
import sys
import torch
from torch.distributed import distributed_c10d
from learners.engine import TrainingEngine, World
from spag_ray.config.parts import LearnerConfig

config = LearnerConfig(dtype="float32", timeout_s=7200, zero_stage=int(sys.argv[1]))
TrainingEngine(torch.nn.Linear(2, 2), config, World(master="127.0.0.1:0"))
groups = distributed_c10d._world.pg_map
waits = [group._get_backend(torch.device("cpu")).options._timeout.total_seconds() for group in groups]
stores = [store.underlying_store.timeout.total_seconds() for _, store in groups.values() if store is not None]
print("groups", len(waits), "wait", *{*waits, stores[0]})
"""


def test_the_timeout_of_learners_is_that_of_every_group_of_theirs() -> None:
    """DeepSpeed makes groups of its own, and torch gives each a default of 30 minutes, and the store one of 5."""
    for stage in (2, 3):
        said = in_a_process(JOIN, str(stage))
        assert "wait 7200.0\n" in said
        assert int(said.split("groups ")[1].split()[0]) > 1, "DeepSpeed's own are among them"


def in_a_process(program: str, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).resolve().parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


MEET = """
import socket
import sys
from learners.engine import World, _join

held = socket.socket()  # without SO_REUSEADDR: nobody could bind its port again
held.bind(("127.0.0.1", 0))
_join(World(master=f"127.0.0.1:{held.getsockname()[1]}", listening=held.detach()), timeout_s=60.0)
print("joined")
"""


def test_rank_0_meets_the_others_on_the_socket_that_it_was_given() -> None:
    assert "joined\n" in in_a_process(MEET)


@pytest.fixture
def rank() -> LearnerActor:
    """A rank without a process of its own, and without a log."""
    actor = LearnerActor.__new__(LearnerActor)
    actor._meeting = None
    return actor


def is_free(place: str, reuses: bool = False) -> bool:
    """Whether another process could listen there now. vLLM's trainer sets SO_REUSEADDR, as `reuses` does."""
    host, port = place.rsplit(":", 1)
    with socket.socket() as other:
        if reuses:
            other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            other.bind((host, int(port)))
            other.listen()
        except OSError:
            return False
    return True


def test_nobody_takes_a_learner_groups_port_as_it_loads(rank: LearnerActor, monkeypatch: pytest.MonkeyPatch) -> None:
    place, worlds = rank.meeting_place(), []
    assert not is_free(place)

    def learner(model: str, config: Any, objective: Any, world: Any) -> Any:
        worlds.append(world)
        return SimpleNamespace(num_buckets=1, num_tensors=1, adapter=None, vocabulary_size=1)

    monkeypatch.setattr("learners.learner.Learner", learner)
    rank.prepare(LearnerConfig(num_threads=1), num_here=1)
    rank.start("model", ObjectiveConfig(), 0, place)
    assert not is_free(place)
    with socket.socket(fileno=worlds[0].listening) as handed_over:
        assert place.endswith(f":{handed_over.getsockname()[1]}")
    assert is_free(place), "its owner is the store now"


def test_nobody_takes_the_port_of_a_channel_before_the_sender_listens_there(rank: LearnerActor) -> None:
    place, seen = rank.meeting_place(), []

    def open_channel(*_: Any) -> None:
        seen.append((is_free(place), is_free(place, reuses=True)))

    rank._learner = SimpleNamespace(open_channel=open_channel, abort_sending=None)
    client = ray.cloudpickle.loads(ray.cloudpickle.dumps(EngineClient([], RunConfig())))  # as it is sent there
    client.check()
    rank.open_channel("nccl", client, place)
    assert seen == [(False, True)]
    assert is_free(place), "it is held no longer"

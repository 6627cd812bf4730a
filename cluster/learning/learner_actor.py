"""One rank of a learner group, in an actor of its own."""

from __future__ import annotations

import contextlib
import os
import socket
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import ray

from cluster.handles import Actor, Handle, actor_method
from cluster.learning.direct_channel import EngineClient, SendReport
from cluster.runtime.ray_session import redirect_output, set_environment
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.host.libraries import hidden


class Loaded(NamedTuple):
    """What a group knows of its learners. `adapter`: its configuration, where adapters are published."""

    num_buckets: int
    num_tensors: int
    adapter: dict[str, Any] | None
    vocabulary_size: int


class LearnerActor(Actor):
    """Hosts one rank. It is created before its group is known, because rank 0 chooses the rendezvous."""

    def __init__(self, log_path: str) -> None:
        redirect_output(log_path)
        self._name = Path(log_path).stem
        self._learner: Any = None
        self._client: EngineClient | None = None
        self._meeting: socket.socket | None = None

    def __repr__(self) -> str:
        """The name in Ray's dashboard and messages."""
        return self._name

    @actor_method
    def meeting_place(self) -> str:
        """A host:port on this node. It is kept for this rank until `start` or `open_channel` has listened there."""
        host = ray.util.get_node_ip_address()
        self._meeting = socket.socket()
        # vLLM's sender binds the port itself. Its socket has SO_REUSEADDR too, so it may while this one, which does not
        # listen, keeps everybody else away.
        self._meeting.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        self._meeting.bind((host, 0))
        return f"{host}:{self._meeting.getsockname()[1]}"

    @actor_method
    def node(self) -> str:
        """The id of the node that this rank is on."""
        return str(ray.get_runtime_context().get_node_id())

    @actor_method
    def prepare(self, config: LearnerConfig, num_here: int) -> None:
        """Import what loads a model, most of the time of a start. It uses no GPU: an engine on the same one may measure
        its free memory. Libraries read the environment when they are imported. `num_here`: ranks on this node, which
        share its cores."""
        set_environment(config.env)
        num_threads = config.num_threads or max(1, (os.cpu_count() or 1) // num_here)
        os.environ["OMP_NUM_THREADS"] = str(num_threads)
        self._config = config.model_copy(update={"num_threads": num_threads})
        with hidden("sklearn"):  # transformers would import it for draft models: a second and 0.1 GiB
            import learners.model_folder  # noqa: F401

    @actor_method
    def start(self, model: str, objective: ObjectiveConfig, rank: int, master: str) -> Loaded:
        """Load the model and join the group, after `prepare`. `master`: its rendezvous, host:port on rank 0's node."""
        from learners.engine import World
        from learners.learner import Learner

        # Ray shows each rank only its own GPU, so its local index is always 0.
        listening = None if self._meeting is None else self._meeting.detach()
        world = World(rank, self._config.num_ranks, 0, master, listening)
        self._learner = learner = Learner(model, self._config, objective, world)
        return Loaded(learner.num_buckets, learner.num_tensors, learner.adapter, learner.vocabulary_size)

    @actor_method
    def call(self, name: str, *arguments: Any) -> Any:
        """A method of this rank's Learner. All ranks are called alike and in the same order: with ZeRO-3 even reading a
        weight is collective."""
        return getattr(self._learner, name)(*arguments)

    @actor_method
    def buckets(self, begin: int, end: int) -> Any:
        """Buckets [begin, end) of rank 0, to be called with as many `num_returns`. Ray stores each before the next one
        is computed, because they share their memory."""
        found = (self._learner.bucket(index) for index in range(begin, end))
        return next(found) if end - begin == 1 else found

    @actor_method
    def gather_buckets(self) -> None:
        """The part of any other rank in rank 0's calls of `buckets`."""
        for index in range(self._learner.num_buckets):
            self._learner.bucket(index)

    @actor_method
    def open_channel(self, channel: str, client: EngineClient, address: str) -> None:
        self._client = client
        client.abort = self._learner.abort_sending
        with self._meeting or contextlib.nullcontext():  # rank 0's, closed when its sender listens
            self._learner.open_channel(channel, client, address, client.world_size, client.timeout_s)
        client.check()

    @actor_method
    def send(self, version: int) -> SendReport:
        assert self._client is not None
        self._client.version = version
        is_sent = self._learner.send()
        self._client.check()
        return SendReport(self._client.lost, self._learner.num_bytes, is_sent)


LearnerHandle: TypeAlias = Handle[LearnerActor]

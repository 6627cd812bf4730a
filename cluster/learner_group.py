"""The learner group: DeepSpeed ranks, one actor each, spoken to as one.

Every call goes to every rank, in the same order, because DeepSpeed's steps and gathers are collective.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray

from cluster.arena_actor import Engine
from cluster.places import Places
from cluster.runtime import get, own_environment, redirect_output
from cluster.transfer import EngineClient, SendReport
from spag_ray.config import Channel, LearnerConfig, ObjectiveConfig
from spag_ray.errors import LearnersLostError
from spag_ray.samples import GameSample, TurnSample


@dataclass(frozen=True)
class Place:
    """A rank's place in its group; `master` is the host:port on rank 0's node where the group meets."""

    rank: int
    size: int
    master: str


class LearnerActor:
    """Hosts one rank. Made before its group is known, because rank 0 says where the group meets."""

    def __init__(self, log_path: str) -> None:
        redirect_output(log_path)
        self._name = Path(log_path).stem
        self._learner: Any = None
        self._client: EngineClient | None = None

    def __repr__(self) -> str:
        """What Ray's pages and messages call it."""
        return self._name

    def meeting_place(self) -> str:
        """host:port on this node that is free now."""
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            return f"{host}:{probe.getsockname()[1]}"

    def node(self) -> str:
        """The id of the node that this rank is on."""
        return str(ray.get_runtime_context().get_node_id())

    def start(
        self, model: str, config: LearnerConfig, objective: ObjectiveConfig, place: Place, num_here: int
    ) -> tuple[int, int, dict[str, Any] | None]:
        """Load the model and join the group; returns (buckets, tensors, adapter configuration) of a snapshot.
        `num_here`: ranks on this node, which share its cores."""
        if config.num_threads is None:
            config = config.model_copy(update={"num_threads": max(1, (os.cpu_count() or 1) // num_here)})
        os.environ["OMP_NUM_THREADS"] = str(config.num_threads)
        from learners.engine import World
        from learners.learner import Learner

        # Ray shows each rank its own GPU alone, so on every node it is the first.
        self._learner = Learner(model, config, objective, World(place.rank, place.size, 0, place.master))
        return self._learner.num_buckets, self._learner.num_tensors, self._learner.adapter

    def begin_stage(self, method: str, num_steps: int, learning_rate: float, kl_coeff: float) -> None:
        self._learner.begin_stage(method, num_steps, learning_rate, kl_coeff)

    def check(self, turns: list[TurnSample]) -> None:
        self._learner.check(turns)

    def score(self, turns: list[TurnSample], temperature: float) -> dict[int, tuple[float, ...]]:
        return self._learner.score(turns, temperature)

    def probe(self, prompt_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> list[float]:
        # Every rank scores it: a pass is collective, and each rank's share must not be empty.
        turn = TurnSample(prompt_ids, target_ids, 1.0)
        return self._learner.score_here(turn)

    def step(self, games: list[GameSample], sft: list[TurnSample], temperature: float, at_start: bool) -> Any:
        from learners.batch import Batch

        return self._learner.step(Batch(tuple(games), tuple(sft)), temperature, at_start)

    def bucket(self, index: int) -> Any:
        return self._learner.bucket(index)

    def save_model(self, folder: str) -> None:
        self._learner.save_model(folder)

    def save_state(self, folder: str) -> None:
        self._learner.save_state(folder)

    def load_state(self, folder: str) -> None:
        self._learner.load_state(folder)

    def open_channel(self, channel: Channel, client: EngineClient, address: str) -> None:
        self._client = client
        self._learner.open_channel(channel, client, address, client.world_size)

    def send(self, version: int) -> SendReport:
        assert self._client is not None
        self._client.version = version
        self._learner.send()
        return SendReport(self._client.lost, self._learner.num_bytes)

    def sleep(self, keep_weights: bool) -> None:
        self._learner.sleep(keep_weights)

    def wake(self) -> None:
        self._learner.wake()


class LearnerGroup:
    """Started by the constructor; `close` ends its actors."""

    def __init__(
        self,
        model: str,
        config: LearnerConfig,
        objective: ObjectiveConfig,
        log_folder: str,
        name: str = "learner",
        places: Places | None = None,
    ) -> None:
        actor = ray.remote(LearnerActor)
        self._timeout_s = config.timeout_s
        self._places = places or Places()
        self._names = [f"{name}-{rank}" for rank in range(config.num_ranks)]
        self._ranks = [
            actor.options(
                name=rank,
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                runtime_env=own_environment(config.env),
                **self._places.take(rank, "learner", config.num_cpus, config.num_gpus),
            ).remote(f"{log_folder}/{rank}.log")
            for rank in self._names
        ]
        self._beats: list[ray.ObjectRef] = []
        try:
            self._places.wait_for(self._names, self._ranks, config.num_cpus, config.num_gpus)
            nodes = self._all("node")
            master = self._get(self._ranks[0].meeting_place.remote())
            ranks = [Place(index, config.num_ranks, master) for index in range(config.num_ranks)]
            started = [
                rank.start.remote(model, config, objective, place, nodes.count(node))
                for rank, place, node in zip(self._ranks, ranks, nodes, strict=True)
            ]
            self.num_buckets, self.num_tensors, self.adapter = self._get(started)[0]
        except BaseException:
            self.close()
            raise

    def check_alive(self, wait_s: float = 0.0) -> None:
        """Raises LearnersLostError for a rank that is dead: found within `wait_s`, or the next time. One that is at
        work does not answer, and counts as alive."""
        if wait_s:
            self._get(ray.wait(self._ask("__ray_ready__"), num_returns=len(self._ranks), timeout=wait_s)[0])
            return
        beats = self._beats or self._ask("__ray_ready__")
        ended, self._beats = ray.wait(beats, num_returns=len(beats), timeout=0)
        self._get(ended)

    def begin_stage(self, method: str, num_steps: int, learning_rate: float, kl_coeff: float) -> None:
        self._all("begin_stage", method, num_steps, learning_rate, kl_coeff)

    def check(self, turns: Sequence[TurnSample]) -> None:
        """Raises LearnerError, before any step, for samples that the model cannot learn."""
        self._get(self._ranks[0].check.remote(list(turns)))

    def score_games(self, games: Sequence[GameSample], temperature: float) -> list[GameSample]:
        """The games with their turns' log-probabilities under the weights as they are now."""
        turns = self.score_turns([turn for game in games for turn in game.turns], temperature)
        scored, at = [], 0
        for game in games:
            scored.append(replace(game, turns=tuple(turns[at : at + len(game.turns)])))
            at += len(game.turns)
        return scored

    def score_turns(self, turns: Sequence[TurnSample], temperature: float) -> list[TurnSample]:
        if not turns:
            return []
        merged: dict[int, tuple[float, ...]] = {}
        for share in self._all("score", list(turns), temperature):
            merged.update(share)
        return [replace(turn, reference_logprobs=merged[index]) for index, turn in enumerate(turns)]

    def step(
        self, games: Sequence[GameSample], sft: Sequence[TurnSample], temperature: float, at_start: bool = False
    ) -> Any:
        """One optimiser step; the StepReport of rank 0. `at_start`: turns without reference log-probabilities take
        those of the weights as they are."""
        return self._all("step", list(games), list(sft), temperature, at_start)[0]

    def bucket_refs(self) -> list[ray.ObjectRef]:
        """The weights as they are now, one object-store reference per bucket."""
        return [self._ask("bucket", index)[0] for index in range(self.num_buckets)]

    def probe_ref(self, prompt_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> ray.ObjectRef:
        """Reference to the log-probabilities [L] of a turn under the weights as they are now, in the engines' terms."""
        return self._ask("probe", prompt_ids, target_ids)[0]

    def save_model(self, folder: str) -> None:
        self._all("save_model", folder)

    def open_channel(
        self, channel: Channel, engines: Sequence[Engine], workers_per_engine: int, in_flight: bool, timeout_s: float
    ) -> None:
        """Connect the ranks with these engines; again when they are others."""
        client = EngineClient(engines, workers_per_engine, in_flight, timeout_s)
        self._all("open_channel", channel, client, self._get(self._ranks[0].meeting_place.remote()))

    def send(self, version: int) -> SendReport:
        """The weights as they are now, as `version`, to the engines of the open channel; what rank 0 reports."""
        return self._all("send", version)[0]

    def save_state(self, folder: str) -> None:
        """All that is needed to go on from here, each rank its part."""
        self._all("save_state", folder)

    def load_state(self, folder: str) -> None:
        self._all("load_state", folder)

    def sleep(self, keep_weights: bool = False) -> None:
        """Offload everything while engines play on the same devices (placement: colocated), or all but the weights."""
        self._all("sleep", keep_weights)

    def wake(self) -> None:
        self._all("wake")

    def close(self) -> None:
        for name, rank in zip(self._names, self._ranks, strict=True):
            ray.kill(rank)
            self._places.leave(name)

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        return self._get(self._ask(method, *arguments))

    def _ask(self, method: str, *arguments: Any) -> list[ray.ObjectRef]:
        """Of every rank, always: with ZeRO-3 even reading a weight is collective."""
        return [getattr(rank, method).remote(*arguments) for rank in self._ranks]

    def _get(self, refs: Any) -> Any:
        try:
            return get(refs, self._timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise LearnersLostError(
                f"a learner call took longer than learner.timeout_s ({self._timeout_s:.0f} s)"
            ) from error
        except ray.exceptions.RayActorError as error:
            raise LearnersLostError(f"a learner rank is gone: {str(error).splitlines()[0]}") from error

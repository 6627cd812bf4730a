"""The learner group: DeepSpeed ranks, one actor each, called as one.

Every rank takes part in every call, in the same order, because DeepSpeed's steps and gathers are collective. Each
sample is sent to one rank only, and a version of the weights takes at most four calls per rank, however large it is.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray

from cluster.handles import R, Ref
from cluster.learning.direct_channel import EngineClient, SendReport
from cluster.learning.learner_actor import LearnerActor, LearnerHandle
from cluster.planning.memory import GIB, learner_memory
from cluster.planning.model_size import model_size
from cluster.planning.reservation import Reservation
from cluster.runtime.ray_session import ACTOR_LOST, first_line, get
from learners.deepspeed_config import deepspeed_config, is_offloaded
from spag_ray.config.run import RunConfig
from spag_ray.errors import LearnerError, LearnersLostError, SpagError
from spag_ray.results.lines import StepReport
from spag_ray.training_data.samples import GameSample, Sample, with_column
from spag_ray.training_data.shares import Batch, check_turns, shares_of
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.weights.snapshot import Bucket

_ON_CPU = re.compile(r"can't allocate memory: you tried to allocate (\d+) bytes")
_ELSEWHERE = re.compile(
    r"out of memory|^MemoryError|unable to allocate|cannot allocate memory|CUBLAS_STATUS_ALLOC_FAILED", re.IGNORECASE
)


class LearnerGroup:
    """The constructor only places its actors, `start` makes a group of them, `close` ends them. `actor`: the class that
    hosts a rank. `says` is told what the start waits for. Where a Learner has a method of the same name
    (learners/learner.py), every rank's is called."""

    actor: type[LearnerActor] = LearnerActor

    def __init__(
        self,
        model: str,
        config: RunConfig,
        log_folder: str,
        name: str = "learner",
        reservation: Reservation | None = None,
        says: Callable[[str | None], None] = lambda what: None,
    ) -> None:
        learner = config.learner
        self._model, self._config, self._says = model, config, says
        self.timeout_s = learner.timeout_s
        self._reservation = reservation or Reservation()
        self._names = [f"{name}-{rank}" for rank in range(learner.num_ranks)]
        self._ranks: list[LearnerHandle] = [
            ray.remote(self.actor)
            .options(
                name=rank,
                num_cpus=learner.num_cpus,
                num_gpus=learner.num_gpus,
                **self._reservation.take(rank, "learner", learner.num_cpus, learner.num_gpus),
            )
            .remote(f"{log_folder}/{rank}.log")
            for rank in self._names
        ]
        self._beats: list[Ref[None]] = []
        self.nodes: frozenset[str] = frozenset()  # the ids of those that ranks are on
        self.has_started = False

    def prepare(self) -> None:
        """The part of `start` that uses no GPU: wait until every rank has room, and import."""
        config = self._config.learner
        with self._starting():
            self._says("starting its process")
            self._reservation.wait_for(self._names, self._ranks, config.num_cpus, config.num_gpus)
            nodes = self.results([rank.node.remote() for rank in self._ranks])
            self._says("importing")
            each = zip(self._ranks, nodes, strict=True)
            self.results([rank.prepare.remote(config, nodes.count(node)) for rank, node in each])
            self.nodes = frozenset(nodes)

    def start(self) -> None:
        """Load the model on every rank. Raises LearnersLostError, LearnerError and ClusterError; the group is closed
        then."""
        if not self.nodes:
            self.prepare()
        with self._starting():
            self._says("loading the model")
            (master,) = self.results([self._ranks[0].meeting_place.remote()])
            started = [
                rank.start.remote(self._model, self._config.objective, rank=index, master=master)
                for index, rank in enumerate(self._ranks)
            ]
            loaded = self.results(started)[0]
            self.num_tensors, self.adapter = loaded.num_tensors, loaded.adapter
            self._num_buckets, self._vocabulary_size = loaded.num_buckets, loaded.vocabulary_size
        self.has_started = True

    @contextlib.contextmanager
    def _starting(self) -> Iterator[None]:
        try:
            yield
        except BaseException:
            self.close()
            raise
        finally:
            self._says(None)

    def check_alive(self, wait_s: float = 0.0) -> None:
        """Raises LearnersLostError for a dead rank: it is found within `wait_s`, or by a later call. A busy rank does
        not answer, and counts as alive."""
        if wait_s:
            self.results(ray.wait(self._ready(), num_returns=len(self._ranks), timeout=wait_s)[0])
            return
        beats = self._beats or self._ready()
        ended, self._beats = ray.wait(beats, num_returns=len(beats), timeout=0)
        self.results(ended)

    def _ready(self) -> list[Ref[None]]:
        return [rank.__ray_ready__.remote() for rank in self._ranks]

    def begin_stage(self, spec: StageSpec) -> None:
        self._all("begin_stage", spec)

    def continue_stage(self, spec: StageSpec) -> None:
        self._all("continue_stage", spec)

    def keep_reference(self) -> None:
        self._all("keep_reference")

    def move_reference(self, share: float) -> None:
        self._all("move_reference", share)

    def load_reference(self, folder: str) -> bool:
        return all(self._all("load_reference", folder))

    def check(self, turns: Sequence[Sample]) -> None:
        """Raises LearnerError, before any step, for samples that the model cannot be trained on."""
        check_turns(turns, self._vocabulary_size)

    def score_games(self, games: Sequence[GameSample], temperature: float) -> list[GameSample]:
        """The games, with their turns' log-probabilities under the current weights as the old ones."""
        return with_column(games, "old_logprobs", self._scores(games, "score", temperature))

    def score_reference(self, games: Sequence[GameSample], temperature: float) -> list[GameSample]:
        """The games, with their turns' log-probabilities under the reference."""
        return with_column(games, "ref_logprobs", self._scores(games, "score_reference", temperature))

    def _scores(self, games: Sequence[GameSample], method: str, temperature: float) -> list[NDArray[np.float32]]:
        """The scores [L] of every turn, in order."""
        turns = [Sample(turn.prompt_ids, turn.target_ids) for game in games for turn in game.turns]
        if not turns:
            return []
        shares = shares_of([turn.num_tokens for turn in turns], len(self._ranks))
        refs = [
            rank.call.remote(method, [turns[index] for index in share], temperature, None if share else turns[0])
            for rank, share in zip(self._ranks, shares, strict=True)
        ]
        scores: dict[int, NDArray[np.float32]] = {}
        for share, found in zip(shares, self.results(refs), strict=True):
            scores |= dict(zip(share, found, strict=True))
        return [scores[index] for index in range(len(turns))]

    def step(self, games: Sequence[GameSample], sft: Sequence[Sample], at_start: bool = False) -> StepReport:
        """One optimiser step; returns the StepReport of rank 0. `at_start`: turns without old log-probabilities take
        those of the current weights."""
        shares = Batch(tuple(games), tuple(sft)).shares(len(self._ranks))
        steps = [rank.call.remote("step", own, at_start) for rank, own in zip(self._ranks, shares, strict=True)]
        return cast(StepReport, self.results(steps)[0])

    def bucket_refs(self) -> list[Ref[Bucket]]:
        """The current weights, one object-store reference per bucket.

        A call of rank 0 computes a run of buckets, and their references can be read when it ends. There are several
        such calls, so that engines load the first buckets while the last are computed. With them, one call of each
        other rank, and a probe of every rank (`probe_ref`), a version takes at most four calls per rank.
        """
        refs: list[Ref[Bucket]] = []
        num_runs = min(self._num_buckets, 2 * len(self._ranks) + 1)
        for begin, end in pairwise(run * self._num_buckets // num_runs for run in range(num_runs + 1)):
            of_run = self._ranks[0].buckets.options(num_returns=end - begin).remote(begin, end)
            refs += [cast(Ref[Bucket], of_run)] if end - begin == 1 else cast(list[Ref[Bucket]], of_run)
        for rank in self._ranks[1:]:
            rank.gather_buckets.remote()
        return refs

    def probe_ref(self, prompt_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> Ref[list[float]]:
        """Reference to the log-probabilities [L] of a turn under the current weights, computed as engines do. Every
        rank scores the whole turn, because each one's share must not be empty."""
        return self._ask("score_here", Sample(prompt_ids, target_ids))[0]

    def save_model(self, folder: str, adapter_alone: bool = False) -> None:
        self._all("save_model", folder, adapter_alone)

    def open_channel(self, channel: str, client: EngineClient) -> None:
        """Connect the ranks with the client's engines; call it again when the engines have changed."""
        (address,) = self.results([self._ranks[0].meeting_place.remote()])
        self.results([rank.open_channel.remote(channel, client, address) for rank in self._ranks])

    def send(self, version: int) -> SendReport:
        """Send the current weights, as `version`, to the engines of the open channel; returns rank 0's report."""
        return self.results([rank.send.remote(version) for rank in self._ranks])[0]

    def save_state(self, folder: str) -> None:
        self._all("save_state", folder)

    def load_state(self, folder: str) -> StageSpec:
        return cast(StageSpec, self._all("load_state", folder)[0])

    def sleep(self, keep_weights: bool = False) -> None:
        """Offload everything while engines play on the same devices (placement: colocated), or all but the weights."""
        self._all("sleep", keep_weights)

    def wake(self) -> None:
        self._all("wake")

    def close(self) -> None:
        for name, rank in zip(self._names, self._ranks, strict=True):
            ray.kill(rank)
            self._reservation.leave(name)

    def _all(self, method: str, *arguments: Any) -> list[Any]:
        return self.results(self._ask(method, *arguments))

    def _ask(self, method: str, *arguments: Any) -> list[Ref[Any]]:
        """Call a method of every rank's Learner."""
        return [rank.call.remote(method, *arguments) for rank in self._ranks]

    def results(self, refs: Sequence[Ref[R]]) -> list[R]:
        """Of calls of ranks. Raises LearnersLostError if one is gone or late, LearnerError if one is out of memory."""
        try:
            return get(refs, self.timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise LearnersLostError(
                f"a learner call took longer than learner.timeout_s ({self.timeout_s:.0f} s)"
            ) from error
        except ACTOR_LOST as error:
            raise LearnersLostError(f"a learner rank is gone: {first_line(error)}") from error
        except ray.exceptions.RayTaskError as error:
            if (told := out_of_memory(str(error.cause) or type(error.cause).__name__)) is None:
                raise
            advice = memory_advice(self._config, self._model)
            raise LearnerError(f"a learner rank is out of memory: {told}; {advice}") from error


def out_of_memory(text: str) -> str | None:
    """What an error of torch or numpy says, without its advice; None if it is about something else."""
    if (found := _ON_CPU.search(text)) is not None:
        return f"it tried to allocate {int(found[1]) / GIB:.2f} GiB"
    if _ELSEWHERE.search(text) is None:
        return None
    return re.split(r"\.? Including non-PyTorch|\.? Of the allocated|\n", text.strip())[0].rstrip(".")


def memory_advice(config: RunConfig, model: str) -> str:
    """What was planned for a rank (planning/memory.py), and what to change."""
    learner = config.learner
    keys = [f"lower learner.max_tokens_per_microbatch ({learner.microbatch_tokens})"]
    if not learner.checkpoints_gradients:
        keys.append("set learner.gradient_checkpointing: true")
    zero = deepspeed_config(learner, on_gpu=learner.num_gpus > 0)["zero_optimization"]
    if zero["stage"] < 3:
        keys.append(f"raise learner.zero_stage ({zero['stage']}), with more learner.num_ranks ({learner.num_ranks})")
    if learner.num_gpus and not is_offloaded(zero, "offload_optimizer"):
        keys.append("offload the optimiser (learner.deepspeed: zero2_offload)")
    if learner.lora is None:
        keys.append("train adapters (learner.lora)")
    return f"{_planned(config, model)}{', or '.join(keys)}"


def _planned(config: RunConfig, model: str) -> str:
    try:
        size = model_size(model, config.model_shape)
    except SpagError:
        return ""
    if size is None:
        return ""
    memory = learner_memory(config, size)
    largest = sorted(memory.parts, key=lambda part: -part.num_bytes)[:4]
    terms = ", ".join(f"{part.name} {part.num_bytes / GIB:.2f}" for part in largest)
    where = f" of its GPU's {config.cluster.gpu_gib:g}" if config.learner.num_gpus else ""
    return f"{memory.num_bytes / GIB:.2f} GiB{where} were planned for each rank ({terms}, ...); "

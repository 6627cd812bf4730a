"""The learner group: DeepSpeed ranks, one actor each, called as one.

Every rank takes part in every call, in the same order, because DeepSpeed's steps and gathers are collective. Each
sample is sent to one rank only, and a version of the weights takes at most four calls per rank, however large it is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, cast

import numpy as np
import ray
from numpy.typing import NDArray

from cluster.handles import R, Ref
from cluster.learning.direct_channel import EngineClient, SendReport
from cluster.learning.learner_actor import LearnerActor, LearnerHandle
from cluster.learning.memory_fault import out_of_memory
from cluster.planning.reservation import Reservation
from cluster.runtime.ray_session import ACTOR_LOST, first_line, get
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import LearnerConfig
from spag_ray.errors import LearnerError, LearnersLostError
from spag_ray.results.lines import StepReport
from spag_ray.training_data.samples import GameSample, Sample, with_column
from spag_ray.training_data.shares import Batch, check_turns, shares_of
from spag_ray.training_data.stage_spec import StageSpec
from spag_ray.weights.snapshot import Bucket


class LearnerGroup:
    """The constructor only places its actors, `start` makes a group of them, `close` ends them. `actor`: the class that
    hosts a rank. `advice`: what to change when a rank is out of memory. `says` is told what the start waits for."""

    actor: type[LearnerActor] = LearnerActor

    def __init__(
        self,
        model: str,
        config: LearnerConfig,
        objective: ObjectiveConfig,
        log_folder: str,
        name: str = "learner",
        reservation: Reservation | None = None,
        advice: Callable[[], str] = lambda: "use a smaller model or micro-batch",
        says: Callable[[str | None], None] = lambda what: None,
    ) -> None:
        self._advice, self._says = advice, says
        self._model, self._config, self._objective = model, config, objective
        self.timeout_s = config.timeout_s
        self._reservation = reservation or Reservation()
        self._names = [f"{name}-{rank}" for rank in range(config.num_ranks)]
        self._ranks: list[LearnerHandle] = [
            ray.remote(self.actor)
            .options(
                name=rank,
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                **self._reservation.take(rank, "learner", config.num_cpus, config.num_gpus),
            )
            .remote(f"{log_folder}/{rank}.log")
            for rank in self._names
        ]
        self._beats: list[Ref[None]] = []
        self.nodes: frozenset[str] = frozenset()  # the ids of those that ranks are on
        self._ranks_here: list[int] = []  # for each rank, the number of ranks on its node
        self.has_started = False

    def prepare(self) -> None:
        """The part of `start` that uses no GPU: wait until every rank has room, and import."""
        config = self._config
        with self._starting():
            self._says("starting its process")
            self._reservation.wait_for(self._names, self._ranks, config.num_cpus, config.num_gpus)
            nodes = self.results([rank.node.remote() for rank in self._ranks])
            ranks_here = [nodes.count(node) for node in nodes]
            self._says("importing")
            each = zip(self._ranks, ranks_here, strict=True)
            self.results([rank.prepare.remote(config, num_here) for rank, num_here in each])
            self.nodes, self._ranks_here = frozenset(nodes), ranks_here

    def start(self) -> None:
        """Load the model on every rank. Raises LearnersLostError, LearnerError and ClusterError; the group is closed
        then."""
        if not self._ranks_here:
            self.prepare()
        model, config, objective = self._model, self._config, self._objective
        with self._starting():
            self._says("loading the model")
            (master,) = self.results([self._ranks[0].meeting_place.remote()])
            started = [
                rank.start.remote(model, config, objective, rank=index, master=master, num_here=num_here)
                for index, (rank, num_here) in enumerate(zip(self._ranks, self._ranks_here, strict=True))
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
        """A part or a rest of the stage that began, which may have another number of steps in all now."""
        self._all("continue_stage", spec)

    def keep_reference(self) -> None:
        """Make the current weights the reference."""
        self._all("keep_reference")

    def move_reference(self, share: float) -> None:
        """Make the reference an average: `share` of it, the rest of the current weights."""
        self._all("move_reference", share)

    def load_reference(self, folder: str) -> bool:
        """Make a saved model's weights the reference; False if they are not available and the current ones are used."""
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
        """Save all that is needed to resume from here; each rank writes its part."""
        self._all("save_state", folder)

    def load_state(self, folder: str) -> StageSpec:
        """Load what `save_state` saved; returns the stage that had begun."""
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
            raise LearnerError(f"a learner rank is out of memory: {told}; {self._advice()}") from error

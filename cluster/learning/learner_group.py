"""The learner group: DeepSpeed ranks, one actor each, called as one.

Every rank takes part in every call, in the same order, because DeepSpeed's steps and gathers are collective. Each
sample is sent to one rank only, and a version of the weights takes at most four calls per rank, however large it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import cast

import ray

from cluster.handles import R, Ref
from cluster.learning.direct_channel import EngineClient, SendReport
from cluster.learning.learner_actor import LearnerActor, LearnerHandle, Place
from cluster.learning.memory_fault import out_of_memory
from cluster.planning.reservation import Reservation
from cluster.runtime.ray_session import get
from cluster.types import Engine
from spag_ray.config.objective import ObjectiveConfig
from spag_ray.config.parts import Channel, LearnerConfig
from spag_ray.errors import LearnerError, LearnersLostError
from spag_ray.results.lines import StepReport
from spag_ray.training_data.samples import GameSample, Sample
from spag_ray.training_data.shares import Batch, check_turns, shares_of
from spag_ray.weights.snapshot import Bucket


class LearnerGroup:
    """Started by the constructor; `close` ends its actors. `actor`: the class that hosts a rank. `advice`: what to
    change when a rank is out of memory."""

    def __init__(
        self,
        model: str,
        config: LearnerConfig,
        objective: ObjectiveConfig,
        log_folder: str,
        name: str = "learner",
        reservation: Reservation | None = None,
        actor: type[LearnerActor] = LearnerActor,
        advice: Callable[[], str] = lambda: "use a smaller model or micro-batch",
    ) -> None:
        self._advice = advice
        self.timeout_s = config.timeout_s
        self._reservation = reservation or Reservation()
        self._names = [f"{name}-{rank}" for rank in range(config.num_ranks)]
        self._ranks: list[LearnerHandle] = [
            ray.remote(actor)
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
        try:
            self._reservation.wait_for(self._names, self._ranks, config.num_cpus, config.num_gpus)
            nodes = self._all(lambda rank: rank.node.remote())
            self.nodes = frozenset(nodes)
            (master,) = self._get([self._ranks[0].meeting_place.remote()])
            ranks = [Place(index, config.num_ranks, master) for index in range(config.num_ranks)]
            started = [
                rank.start.remote(model, config, objective, place, nodes.count(node))
                for rank, place, node in zip(self._ranks, ranks, nodes, strict=True)
            ]
            loaded = self._get(started)[0]
            self.num_tensors, self.adapter = loaded.num_tensors, loaded.adapter
            self._num_buckets, self._vocabulary_size = loaded.num_buckets, loaded.vocabulary_size
        except BaseException:
            self.close()
            raise

    def check_alive(self, wait_s: float = 0.0) -> None:
        """Raises LearnersLostError for a dead rank: it is found within `wait_s`, or by a later call. A busy rank does
        not answer, and counts as alive."""
        if wait_s:
            self._get(ray.wait(self._ready(), num_returns=len(self._ranks), timeout=wait_s)[0])
            return
        beats = self._beats or self._ready()
        ended, self._beats = ray.wait(beats, num_returns=len(beats), timeout=0)
        self._get(ended)

    def _ready(self) -> list[Ref[None]]:
        return self._ask(lambda rank: rank.__ray_ready__.remote())

    def begin_stage(
        self, method: str, num_steps: int, learning_rate: float, kl_coeff: float, listening_coeff: float = 0.0
    ) -> None:
        self._all(lambda rank: rank.begin_stage.remote(method, num_steps, learning_rate, kl_coeff, listening_coeff))

    def continue_stage(self, num_steps: int) -> None:
        """Set the stage's total number of steps, in place of the number given at its start."""
        self._all(lambda rank: rank.continue_stage.remote(num_steps))

    def keep_reference(self) -> None:
        """Make the current weights the reference."""
        self._all(lambda rank: rank.keep_reference.remote())

    def load_reference(self, folder: str) -> bool:
        """Make a saved model's weights the reference; False if they are not available and the current ones are used."""
        return all(self._all(lambda rank: rank.load_reference.remote(folder)))

    def check(self, turns: Sequence[Sample]) -> None:
        """Raises LearnerError, before any step, for samples that the model cannot be trained on."""
        check_turns(turns, self._vocabulary_size)

    def score_games(self, games: Sequence[GameSample], temperature: float) -> list[GameSample]:
        """The games, with their turns' log-probabilities under the current weights as the old ones."""
        scored = iter(self._scores(games, lambda rank, turns, other: rank.score.remote(turns, temperature, other)))
        return [
            replace(game, turns=tuple(replace(turn, old_logprobs=next(scored)) for turn in game.turns))
            for game in games
        ]

    def score_reference(self, games: Sequence[GameSample], temperature: float) -> list[GameSample]:
        """The games, with their turns' log-probabilities under the reference."""
        scored = iter(
            self._scores(games, lambda rank, turns, other: rank.score_reference.remote(turns, temperature, other))
        )
        return [
            replace(game, turns=tuple(replace(turn, ref_logprobs=next(scored)) for turn in game.turns))
            for game in games
        ]

    def _scores(
        self,
        games: Sequence[GameSample],
        score: Callable[[LearnerHandle, Sequence[Sample], Sample | None], Ref[list[tuple[float, ...]]]],
    ) -> list[tuple[float, ...]]:
        """The scores of every turn, in order."""
        turns = [Sample(turn.prompt_ids, turn.target_ids, 0.0) for game in games for turn in game.turns]
        if not turns:
            return []
        shares = shares_of([turn.num_tokens for turn in turns], len(self._ranks))
        refs = [
            score(rank, [turns[index] for index in share], None if share else turns[0])
            for rank, share in zip(self._ranks, shares, strict=True)
        ]
        scores: list[tuple[float, ...]] = [()] * len(turns)
        for share, found in zip(shares, self._get(refs), strict=True):
            for index, logprobs in zip(share, found, strict=True):
                scores[index] = logprobs
        return scores

    def step(
        self, games: Sequence[GameSample], sft: Sequence[Sample], temperature: float, at_start: bool = False
    ) -> StepReport:
        """One optimiser step; returns the StepReport of rank 0. `at_start`: turns without old log-probabilities take
        those of the current weights."""
        shares = Batch(tuple(games), tuple(sft)).shares(len(self._ranks))
        steps = [rank.step.remote(own, temperature, at_start) for rank, own in zip(self._ranks, shares, strict=True)]
        return self._get(steps)[0]

    def bucket_refs(self) -> list[Ref[Bucket]]:
        """The current weights, one object-store reference per bucket.

        A call of rank 0 computes a run of buckets, and their references can be read when it ends. There are several
        such calls, so that engines load the first buckets while the last are computed. With them, one call of each
        other rank, and a probe of every rank (`probe_ref`), a version takes at most four calls per rank.
        """
        refs: list[Ref[Bucket]] = []
        for run in runs(self._num_buckets, 2 * len(self._ranks) + 1):
            of_run = self._ranks[0].buckets.options(num_returns=len(run)).remote(run.start, run.stop)
            refs += [cast(Ref[Bucket], of_run)] if len(run) == 1 else cast(list[Ref[Bucket]], of_run)
        for rank in self._ranks[1:]:
            rank.gather_buckets.remote()
        return refs

    def probe_ref(self, prompt_ids: tuple[int, ...], target_ids: tuple[int, ...]) -> Ref[list[float]]:
        """Reference to the log-probabilities [L] of a turn under the current weights, computed as engines do."""
        return self._ask(lambda rank: rank.probe.remote(prompt_ids, target_ids))[0]

    def save_model(self, folder: str, adapter_alone: bool = False) -> None:
        self._all(lambda rank: rank.save_model.remote(folder, adapter_alone))

    def open_channel(
        self, channel: Channel, engines: Sequence[Engine], workers_per_engine: int, in_flight: bool, timeout_s: float
    ) -> None:
        """Connect the ranks with these engines; call it again when the engines have changed."""
        client = EngineClient(engines, workers_per_engine, in_flight, timeout_s)
        (address,) = self._get([self._ranks[0].meeting_place.remote()])
        self._all(lambda rank: rank.open_channel.remote(channel, client, address))

    def send(self, version: int) -> SendReport:
        """Send the current weights, as `version`, to the engines of the open channel; returns rank 0's report."""
        return self._all(lambda rank: rank.send.remote(version))[0]

    def save_state(self, folder: str) -> None:
        """Save all that is needed to resume from here; each rank writes its part."""
        self._all(lambda rank: rank.save_state.remote(folder))

    def load_state(self, folder: str) -> None:
        self._all(lambda rank: rank.load_state.remote(folder))

    def sleep(self, keep_weights: bool = False) -> None:
        """Offload everything while engines play on the same devices (placement: colocated), or all but the weights."""
        self._all(lambda rank: rank.sleep.remote(keep_weights))

    def wake(self) -> None:
        self._all(lambda rank: rank.wake.remote())

    def close(self) -> None:
        for name, rank in zip(self._names, self._ranks, strict=True):
            ray.kill(rank)
            self._reservation.leave(name)

    def _all(self, call: Callable[[LearnerHandle], Ref[R]]) -> list[R]:
        return self._get(self._ask(call))

    def _ask(self, call: Callable[[LearnerHandle], Ref[R]]) -> list[Ref[R]]:
        """Call every rank, always: with ZeRO-3 even reading a weight is collective."""
        return [call(rank) for rank in self._ranks]

    def _get(self, refs: Sequence[Ref[R]]) -> list[R]:
        try:
            return get(refs, self.timeout_s)
        except ray.exceptions.GetTimeoutError as error:
            raise LearnersLostError(
                f"a learner call took longer than learner.timeout_s ({self.timeout_s:.0f} s)"
            ) from error
        except (ray.exceptions.RayActorError, ray.exceptions.OutOfMemoryError) as error:
            raise LearnersLostError(f"a learner rank is gone: {str(error).splitlines()[0]}") from error
        except ray.exceptions.RayTaskError as error:
            if (told := out_of_memory(str(error.cause) or type(error.cause).__name__)) is None:
                raise
            raise LearnerError(f"a learner rank is out of memory: {told}; {self._advice()}") from error


def runs(count: int, most: int) -> list[range]:
    """0 .. count - 1 in at most `most` runs of nearly equal length, none empty.

    >>> runs(5, most=3)
    [range(0, 1), range(1, 3), range(3, 5)]
    """
    number = min(count, most)
    return [range(run * count // number, (run + 1) * count // number) for run in range(number)]

"""The global batch of an optimiser step, and what each rank of a learner group gets of it.

The process that puts a batch together plans it for all ranks, so each sample is sent to one rank only. There is no
torch here, because that process trains nothing.

    >>> shares_of([5, 1, 4, 3], num_ranks=2)
    [[0, 1], [2, 3]]
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from spag_ray.errors import LearnerError
from spag_ray.game.rules import Role
from spag_ray.training_data.samples import GameSample, Sample

ROUNDED = 1e-9  # an advantage below it is what rounding leaves of a group that was paid alike


@dataclass(frozen=True)
class Batch:
    """The global batch of one optimiser step: games (never split) and SFT rows. Or one rank's share of it, made by
    `shares`: then `whole` counts the global batch, and a share without items has a `stand_in`, with which its rank
    takes part in collective calls."""

    games: tuple[GameSample, ...]
    sft: tuple[Sample, ...] = ()
    whole: BatchCounts | None = None
    stand_in: Sample | None = None

    def shares(self, num_ranks: int) -> list[Batch]:
        """This global batch, divided over the ranks."""
        games = shares_of([game.num_tokens for game in self.games], num_ranks)
        rows = shares_of([row.num_tokens for row in self.sft], num_ranks)
        first = next(iter(self.samples), None)
        return [
            Batch(
                tuple(self.games[index] for index in own_games),
                tuple(self.sft[index] for index in own_rows),
                self.counts,
                None if own_games or own_rows else first,
            )
            for own_games, own_rows in zip(games, rows, strict=True)
        ]

    @cached_property
    def counts(self) -> BatchCounts:
        """Those of the global batch."""
        return self.whole or BatchCounts.of(self)

    @property
    def samples(self) -> list[Sample]:
        """Everything that is trained on: turns, listened turns, places of unsaid words, SFT rows."""
        return [
            *(turn for game in self.games for turn in game.turns),
            *(position for game in self.games for position in game.listening),
            *(place for game in self.games for turn in game.unsaid for place in turn),
            *self.sft,
        ]


@dataclass(frozen=True)
class BatchCounts:
    """What the loss and the report of every rank need to know of a global batch.

    `num_tokens`: trained tokens of turns; `max_tokens`: those of the longest. `advantage_mean`, `_std`: of the turns;
    `_zeros`: the share of zeros (all are 0 without turns). `num_decided`: games with trained turns, N of the loss.
    `num_listened`: games with listened turns that train the word, K of the loss; `num_heard`: those that train when to
    claim too. `num_unsaid`: {seat: games with turns of it that must not say some words}. `role_weights`: {role: mean
    weight of the games that it decided; 0 if none}.
    """

    num_turns: int
    num_tokens: int
    max_tokens: int
    advantage_mean: float
    advantage_std: float
    advantage_zeros: float
    num_rows: int
    num_decided: int
    num_listened: int
    num_heard: int
    num_unsaid: Mapping[Role | None, int]
    role_weights: Mapping[Role, float]

    @classmethod
    def of(cls, batch: Batch) -> BatchCounts:
        games = batch.games
        turns = [turn for game in games for turn in game.turns]
        heard = [game for game in games if game.listening]
        lengths = np.array([each.num_trained for each in turns])
        advantages = np.array([each.advantage for each in turns])
        weights = {role: [game.weight for game in games if game.role is role and game.turns] for role in Role}
        return cls(
            num_turns=len(turns),
            num_tokens=int(lengths.sum()),
            max_tokens=int(lengths.max(initial=0)),
            advantage_mean=float(advantages.mean()) if len(advantages) else 0.0,
            advantage_std=float(advantages.std()) if len(advantages) else 0.0,
            advantage_zeros=float((abs(advantages) < ROUNDED).mean()) if len(advantages) else 0.0,
            num_rows=len(batch.sft),
            num_decided=sum(bool(game.turns) for game in games),
            num_listened=sum(all(place.claiming is None for place in game.listening) for game in heard),
            num_heard=len(heard),
            num_unsaid=Counter(role for game in games for role in {turn[0].role for turn in game.unsaid}),
            role_weights={role: sum(values) / len(values) if values else 0.0 for role, values in weights.items()},
        )


def shares_of(sizes: Sequence[int], num_ranks: int) -> list[list[int]]:
    """The indices of each rank, in order. Items are given out largest first, each to the rank with the least so far."""
    loads = [0] * num_ranks
    shares: list[list[int]] = [[] for _ in range(num_ranks)]
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        rank = loads.index(min(loads))
        loads[rank] += sizes[index]
        shares[rank].append(index)
    return [sorted(share) for share in shares]


def check_turns(turns: Sequence[Sample], vocabulary_size: int) -> None:
    """Raises LearnerError for a token that the model's vocabulary does not have."""
    for index, turn in enumerate(turns):
        ids = np.concatenate([turn.prompt_ids, turn.target_ids])
        smallest, largest = int(ids.min()), int(ids.max())
        if largest >= vocabulary_size or smallest < 0:
            raise LearnerError(
                f"sample {index} has token id {largest if smallest >= 0 else smallest}, the model's vocabulary has "
                f"{vocabulary_size} tokens; was it made with another model's tokenizer?"
            )
